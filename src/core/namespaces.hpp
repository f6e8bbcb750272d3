// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The namespaces of the library's folders. A folder sees the folders to its left (docs/architecture.md),
/// so its namespace sees theirs: names need a qualifier only where two folders use the same one.

namespace atomo {
namespace core {}
namespace math {
using namespace core;
}
namespace coding {
using namespace math;
}
namespace format {
using namespace coding;
}
namespace patch {
using namespace format;
}
namespace price {
using namespace format;
}
namespace backend {
using namespace price;
}
namespace cpu {
using namespace backend;
}
namespace cuda {
using namespace backend;
}
namespace codec {
using namespace cpu;
}
namespace model {
using namespace codec;
}
}  // namespace atomo

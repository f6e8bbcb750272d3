// SPDX-License-Identifier: Apache-2.0
/// Shared objects with codecs in them.
#include <dlfcn.h>

#include <cstring>
#include <memory>

#include "codec/own_codecs.hpp"
#include "core/utf8.hpp"

namespace atomo {
namespace {

using core::shown;

/// What a shared object adds, until all of it is known.
class Added final : public CodecRegistry {
 public:
  void add(CodecDefinition definition) override { definitions.push_back(std::move(definition)); }
  std::vector<CodecDefinition> definitions;
};

/// Why objects of these two cannot work together; empty where they can.
std::string mismatch(const CodecsAbi& theirs) {
  static constexpr CodecsAbi kOurs = CodecsAbi::here();
  const std::string version(theirs.version, strnlen(theirs.version, sizeof theirs.version));
  if (version != kOurs.version)
    return "it was built for atomo " + shown(version) + ", and this is " + kOurs.version;
  if (theirs.string_abi != kOurs.string_abi)
    return "it was built with -D_GLIBCXX_USE_CXX11_ABI=" + std::to_string(theirs.string_abi) +
           ", and this with " + std::to_string(kOurs.string_abi);
  if (theirs.compiler_abi / 1000 != kOurs.compiler_abi / 1000)
    return "its compiler has the ABI " + std::to_string(theirs.compiler_abi) +
           ", and this one's is " + std::to_string(kOurs.compiler_abi);
  const bool same = theirs.definition_bytes == kOurs.definition_bytes &&
                    theirs.traits_bytes == kOurs.traits_bytes &&
                    theirs.shape_bytes == kOurs.shape_bytes;
  return same ? "" : "it was built with other headers of atomo than this";
}

/// Closes a shared object that is not kept.
struct Close {
  void operator()(void* object) const noexcept { dlclose(object); }
};

}  // namespace

void load_codecs(const std::string& path) {
  const std::string file = "the shared object '" + shown(path) + "' ";
  std::unique_ptr<void, Close> object(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (object == nullptr) {
    const char* const why = dlerror();
    const bool is_path = path.find('/') != std::string::npos;
    throw Error(file + "cannot be loaded: " + shown(why == nullptr ? "no reason given" : why) +
                (is_path ? "" : "; a file of this folder is './" + shown(path) + "'"));
  }
  const auto* const abi = static_cast<const CodecsAbi*>(dlsym(object.get(), "atomo_codecs_abi"));
  void* const function = dlsym(object.get(), "atomo_codecs");
  if (abi == nullptr || function == nullptr)
    throw Error(file +
                "has no codecs: expected ATOMO_CODECS (atomo/own_codec.hpp) in one of its sources");
  if (abi->interface != CodecsAbi{}.interface)
    throw Error(file + "is refused: its interface is number " + std::to_string(abi->interface) +
                ", and this one's is " + std::to_string(CodecsAbi{}.interface) +
                "; build it again");
  if (const std::string why = mismatch(*abi); !why.empty())
    throw Error(file + "is refused: " + why + "; build it again");
  Added added;
  try {
    reinterpret_cast<void (*)(CodecRegistry&)>(function)(added);
  } catch (const std::exception& e) {
    const Error error(file + "could not add its codecs: " + shown(e.what()));
    added.definitions.clear();  // before the code of their destructors is gone
    throw error;
  }
  try {
    codec::register_definitions(added.definitions);
  } catch (const Error& e) {
    added.definitions.clear();
    throw Error(file + "is refused: " + e.what());
  }
  static_cast<void>(object.release());  // its code stays
}

}  // namespace atomo

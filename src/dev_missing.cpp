
// DEV
#include "spec.hpp"
namespace atomo::detail {
#define ATOMO_NONE(F) std::shared_ptr<const Method> F(SpecArgs& a) { a.fail("", "not built"); }
#define ATOMO_NODEC(D) const BodyDecoder D{nullptr,[](const Kind&) noexcept { return false; },nullptr,nullptr,nullptr,nullptr};
#ifdef ATOMO_WITHOUT_atomo
ATOMO_NONE(make_atomo)
#endif
#ifdef ATOMO_WITHOUT_atoms
ATOMO_NODEC(kAtomsDecoder)
#endif
#ifdef ATOMO_WITHOUT_coordinate
ATOMO_NONE(make_coordinate) ATOMO_NODEC(kCoordinateDecoder)
#endif
#ifdef ATOMO_WITHOUT_svd
ATOMO_NONE(make_svd) ATOMO_NODEC(kFactorsDecoder)
#endif
#ifdef ATOMO_WITHOUT_qsgd
ATOMO_NONE(make_qsgd) ATOMO_NODEC(kQsgdDecoder)
#endif
#ifdef ATOMO_WITHOUT_terngrad
ATOMO_NONE(make_terngrad) ATOMO_NODEC(kTernaryDecoder)
#endif
#ifdef ATOMO_WITHOUT_sign
ATOMO_NONE(make_sign) ATOMO_NODEC(kSignDecoder)
#endif
#ifdef ATOMO_WITHOUT_topk
ATOMO_NONE(make_topk) ATOMO_NODEC(kTopkDecoder)
#endif
#ifdef ATOMO_WITHOUT_random_k
ATOMO_NONE(make_random_k) ATOMO_NODEC(kRandomKDecoder)
#endif
#ifdef ATOMO_WITHOUT_blosc
std::shared_ptr<const Method> make_blosc(std::shared_ptr<const Method>, BloscOptions) { throw Error("not built"); }
Status blosc_unpack(ConstBytes, Bytes, std::size_t&) noexcept { return Status::unsupported; }
#endif

}
#include "pairs.hpp"
namespace atomo::detail {
#ifdef ATOMO_WITHOUT_pairs
bool has_pairs(const Shape&) noexcept { return false; }
std::uint64_t pair_count(const Shape&) noexcept { return 0; }
std::size_t max_pairs_body_bytes(const Shape&) noexcept { return 0; }
std::size_t decode_pairs_workspace_bytes(const Shape&) noexcept { return 0; }
Status decode_pairs(ConstBytes, const Shape&, float, const Key&, float*, cpu::DecodeMode, Bytes) noexcept { return Status::corrupt; }
Status inspect_pairs(ConstBytes, const Shape&, std::uint64_t&) noexcept { return Status::corrupt; }
#endif
#ifdef ATOMO_WITHOUT_atoms
std::shared_ptr<const Method> make_atoms(SpecArgs& a, bool) { a.fail("", "not built"); }
#endif
}

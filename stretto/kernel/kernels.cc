// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/kernel/kernels.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "stretto/base/status.h"
#include "stretto/kernel/reduce.h"
#include "stretto/kernel/targets.h"  // Before Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "stretto/kernel/kernels.cc"
#include "hwy/foreach_target.h"  // Must come before highway.h.

#include "hwy/highway.h"
#include "stretto/kernel/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace stretto::kernel::HWY_NAMESPACE {

template <class Format>
Kernel arithmetic(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return &PassLoop<Format, Sum>::run;
    case ReduceOp::product:
      return &PassLoop<Format, Product>::run;
    case ReduceOp::min:
      return &PassLoop<Format, Min>::run;
    case ReduceOp::max:
      return &PassLoop<Format, Max>::run;
    default:
      return nullptr;
  }
}

// The operations that depend on the sign.
template <class Format>
Kernel ordered(ReduceOp op) {
  if (op == ReduceOp::min) return &PassLoop<Format, Min>::run;
  if (op == ReduceOp::max) return &PassLoop<Format, Max>::run;
  return nullptr;
}

template <class Format>
Kernel bitwise(ReduceOp op) {
  if (op == ReduceOp::bit_and) return &PassLoop<Format, BitAnd>::run;
  if (op == ReduceOp::bit_or) return &PassLoop<Format, BitOr>::run;
  if (op == ReduceOp::bit_xor) return &PassLoop<Format, BitXor>::run;
  return nullptr;
}

Kernel reduction(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::u8:
      if (const Kernel kernel = bitwise<Plain<std::uint8_t>>(op)) return kernel;
      return arithmetic<Plain<std::uint8_t>>(op);
    case DType::u16:
      return arithmetic<Plain<std::uint16_t>>(op);
    case DType::u32:
      return arithmetic<Plain<std::uint32_t>>(op);
    case DType::u64:
      return arithmetic<Plain<std::uint64_t>>(op);
    case DType::i8:
      return ordered<Plain<std::int8_t>>(op);
    case DType::i16:
      return ordered<Plain<std::int16_t>>(op);
    case DType::i32:
      return ordered<Plain<std::int32_t>>(op);
    case DType::i64:
      return ordered<Plain<std::int64_t>>(op);
    case DType::f16:
      return arithmetic<Uniform16<HalfCodec>>(op);
    case DType::bf16:
      return arithmetic<Uniform16<BFloat16Codec>>(op);
    case DType::f32:
      return arithmetic<Plain<float>>(op);
    case DType::f64:
      return arithmetic<Plain<double>>(op);
    case DType::c64:
      return op == ReduceOp::product ? &PassLoop<Complex<float>, ComplexProduct>::run : nullptr;
    case DType::c128:
      return op == ReduceOp::product ? &PassLoop<Complex<double>, ComplexProduct>::run : nullptr;
    case DType::boolean:
      return bitwise<Boolean>(op);
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      return nullptr;
  }
  return nullptr;
}

template <class Codec>
Kernel mixed(ReduceOp op, DType output_dtype) {
  if (output_dtype == DType::f32) return arithmetic<InOrder<Codec, MixedSource, float>>(op);
  return arithmetic<InOrder<Codec, MixedSource, std::uint16_t>>(op);
}

Kernel mixed_reduction(DType dtype, ReduceOp op, DType output_dtype) {
  if (dtype == DType::f16) return mixed<HalfCodec>(op, output_dtype);
  return mixed<BFloat16Codec>(op, output_dtype);
}

}  // namespace stretto::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernel {

HWY_EXPORT(reduction);
HWY_EXPORT(mixed_reduction);

Kernel find_reduction(DType dtype, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(reduction)(dtype, op);
}

Kernel find_mixed_reduction(DType dtype, ReduceOp op, DType output_dtype) {
  return HWY_DYNAMIC_DISPATCH(mixed_reduction)(dtype, op, output_dtype);
}

// These two functions are here because HWY_TARGETS is the set of targets that this file was
// compiled for. The portable target runs on every machine, whichever targets the Highway library
// was compiled to detect.
std::vector<std::string_view> available_targets() {
  constexpr std::int64_t kPortable = HWY_TARGETS & (HWY_EMU128 | HWY_SCALAR);
  const std::int64_t available = (hwy::SupportedTargets() & HWY_TARGETS) | kPortable;
  std::vector<std::string_view> names;
  for (std::int64_t rest = available; rest != 0; rest &= rest - 1) {
    names.push_back(hwy::TargetName(rest & -rest));
  }
  return names;
}

Status use_target(std::string_view target) {
  if (target.empty()) {
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return {};
  }
  const std::vector<std::string_view> available = available_targets();
  if (std::find(available.begin(), available.end(), target) == available.end()) {
    return status_of(StatusCode::invalid_argument, "no SIMD target {} on this machine", target);
  }
  for (std::int64_t rest = HWY_TARGETS; rest != 0; rest &= rest - 1) {
    const std::int64_t one = rest & -rest;
    if (target == hwy::TargetName(one)) hwy::GetChosenTarget().Update(one);
  }
  return {};
}

}  // namespace stretto::kernel
#endif  // HWY_ONCE

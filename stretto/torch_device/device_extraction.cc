// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch_device/device_extraction.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <c10/core/DeviceGuard.h>

#include "stretto/base/check.h"
#include "stretto/base/log.h"
#include "stretto/cuda/load_kernels.h"
#include "stretto/torch_device/device_tensors.h"
#include "stretto/torch_device/streams.h"

namespace stretto::ddp {
namespace {

// Loads our kernels, if they run on the device that is current.
Result<cuda::CodecKernels> load_working_kernels() {
  STRETTO_ASSIGN_OR_RETURN(const auto kernels, cuda::load_codec_kernels(process_environment()));
  const int error = kernels.probe();
  if (error == 0) return kernels;
  return status_of(StatusCode::system, "stretto's kernels do not run here: CUDA's error {}", error);
}

// Our kernels; null if PyTorch's operators do the work: on devices of other kinds, and if the
// kernels cannot be loaded or do not run on the first GPU that is asked about.
const cuda::CodecKernels* kernels_for(const torch::Tensor& values) {
  if (!values.is_cuda()) return nullptr;
  static const Result<cuda::CodecKernels> loaded = [&] {
    const c10::DeviceGuard guard(values.device());
    Result<cuda::CodecKernels> kernels = load_working_kernels();
    if (!kernels.ok()) {
      log(LogLevel::info, "codecs work by PyTorch's operators: {}", kernels.status().message());
    }
    return kernels;
  }();
  return loaded.ok() ? &loaded.value() : nullptr;
}

// Begins a kernel on the calling thread's current stream.
template <class Kernel, class Task>
void begin(Kernel kernel, const Task& task, const torch::Tensor& values) {
  const c10::DeviceGuard guard(values.device());
  const int error = kernel(&task, current_stream(values.device()).native_handle());
  if (error == 0) return;
  status_of(StatusCode::system, "beginning a kernel of a codec: CUDA's error {}", error).or_throw();
}

cuda::Rounding rounding_of(const torch::Tensor& values, const codec::Extraction& how,
                           const torch::Tensor& numbers) {
  const bool is_i8 = how.rounded == DType::i8, is_boolean = how.rounded == DType::boolean;
  STRETTO_CHECK(!is_i8 || how.block == cuda::kInt8Block, "kernels know no blocks of {}", how.block);
  STRETTO_CHECK(!is_boolean || (how.block == cuda::kSignBlock && how.section == cuda::kSignSection),
                "kernels know no blocks of {} in sections of {}", how.block, how.section);
  const auto count = static_cast<std::size_t>(values.numel());
  auto* const first = static_cast<std::uint8_t*>(numbers.data_ptr());
  return {.values = values.data_ptr<float>(),
          .count = count,
          .dtype = *how.rounded,
          .limit = how.limit,
          .numbers = first,
          .scales = is_i8 ? first + count : nullptr,
          .is_stochastic = how.key.has_value(),
          .key = how.key.value_or(0)};
}

// By our kernels.
torch::Tensor select(const cuda::CodecKernels& kernels, const torch::Tensor& values,
                     std::size_t greatest) {
  const auto count = static_cast<std::size_t>(values.numel());
  const torch::Tensor indices =
      torch::empty({static_cast<std::int64_t>(greatest)}, values.options().dtype(torch::kLong));
  const torch::Tensor room = torch::empty({static_cast<std::int64_t>(cuda::selection_room(count))},
                                          values.options().dtype(torch::kInt));
  begin(kernels.select,
        cuda::Selection{values.data_ptr<float>(), count, greatest, indices.data_ptr<std::int64_t>(),
                        reinterpret_cast<std::uint32_t*>(room.data_ptr<std::int32_t>())},
        values);
  return indices;
}

// Magnitudes as integers in the same order.
torch::Tensor magnitudes_of(const torch::Tensor& values) {
  return values.view(torch::kInt).bitwise_and(0x7FFFFFFF);
}
constexpr int kInfinityBits = 0x7F800000;

// The indices of the greatest elements, ascending. The key of an element is its magnitude, then how
// many elements follow it. So no two keys are equal, and the result is the same on every device.
torch::Tensor find_greatest(const torch::Tensor& carry, std::size_t greatest) {
  if (const auto* const kernels = kernels_for(carry)) return select(*kernels, carry, greatest);
  constexpr std::int64_t kPlaces = std::int64_t{1} << 32;
  const std::int64_t last = carry.numel() - 1;
  torch::Tensor keys = magnitudes_of(carry).to(torch::kLong);
  keys.mul_(kPlaces).add_(torch::arange(last, -1, -1, keys.options()));
  const auto count = static_cast<std::int64_t>(greatest);
  const torch::Tensor found =
      std::get<0>(keys.topk(count, /*dim=*/-1, /*largest=*/true, /*sorted=*/false));
  return std::get<0>(found.bitwise_and(kPlaces - 1).neg_().add_(last).sort());
}

// The indices of the elements of at least this magnitude, ascending.
torch::Tensor find_at_least(const torch::Tensor& carry, float least) {
  const auto limit = static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(std::fabs(least)));
  return magnitudes_of(carry).ge(limit).nonzero().view({-1});
}

// The scales that have these exponents, which are integers.
torch::Tensor scales_of(const torch::Tensor& exponents) {
  constexpr int kMantissaBits = 23;
  return exponents.bitwise_left_shift(kMantissaBits).view(torch::kFloat);
}

// The random numbers of kernel/quantize.cc.
torch::Tensor draw(std::int64_t count, std::uint64_t key, const torch::TensorOptions& options) {
  constexpr std::int64_t kLow = 0xFFFFFFFF;
  const auto mix = [](const torch::Tensor& bits) {
    bits.bitwise_xor_(bits.bitwise_right_shift(16)).mul_(0x21F0AAAD).bitwise_and_(kLow);
    // The low half of a product with 0xD35A2D97, which could be too great for a signed integer.
    bits.bitwise_xor_(bits.bitwise_right_shift(15)).mul_(-0x2CA5D269).bitwise_and_(kLow);
    return bits.bitwise_xor_(bits.bitwise_right_shift(15));
  };
  const auto low = static_cast<std::int64_t>(key) & kLow;
  const torch::Tensor bits =
      torch::arange(low, low + count, options.dtype(torch::kLong)).bitwise_and_(kLow);
  return mix(mix(bits).bitwise_xor_(static_cast<std::int64_t>(key >> 32)))
      .bitwise_right_shift(8)
      .to(torch::kFloat)
      .mul_(0x1p-24);
}

// Rounds as int8() does. Scales are powers of two, so nothing else rounds.
torch::Tensor round_to_int8(torch::Tensor& carry, const codec::Extraction& how) {
  const auto block = static_cast<std::int64_t>(how.block);
  const std::int64_t count = carry.numel();
  const std::int64_t blocks = (count + block - 1) / block;
  const torch::Tensor is_number = carry.isfinite();
  const torch::Tensor values =
      torch::constant_pad_nd(carry.nan_to_num(0.0, 0.0, 0.0), {0, blocks * block - count})
          .view({blocks, block});
  const torch::Tensor greatest = magnitudes_of(values).amax(1, /*keepdim=*/true);
  torch::Tensor exponents = greatest.bitwise_right_shift(23).clamp_min_(7).sub_(6);
  if (how.key) {  // Above 127 * scale, there is no code to round up to.
    exponents.add_(greatest.bitwise_and(0x7FFFFF).gt(0x7E0000).logical_and_(exponents.lt(248)));
  }
  torch::Tensor codes = values.mul(scales_of(exponents.neg().add_(254)));
  if (how.key) {
    const torch::Tensor whole = codes.floor();
    const torch::Tensor drawn = draw(values.numel(), *how.key, values.options()).view_as(values);
    codes = whole.add(drawn.lt(codes.sub_(whole)));
  }
  // Code 0 has no sign: a negative zero stays in the rest.
  codes.round_().clamp_(-127, 127).add_(0.0);
  const torch::Tensor rest = values.sub(codes.mul(scales_of(exponents)));
  carry.copy_(rest.view({-1}).narrow(0, 0, count));
  constexpr int kSaysNan = -128;
  const torch::Tensor said =
      codes.view({-1}).narrow(0, 0, count).masked_fill(is_number.logical_not(), kSaysNan);
  return torch::cat(
      {said.to(torch::kChar).view(torch::kByte), exponents.view({-1}).to(torch::kByte)});
}

// The values that codes and scales stand for.
torch::Tensor values_of_int8(const torch::Tensor& bytes, std::int64_t count, std::int64_t block) {
  const torch::Tensor codes = bytes.narrow(0, 0, count).view(torch::kChar);
  const torch::Tensor exponents =
      bytes.narrow(0, count, bytes.numel() - count).to(torch::kInt).clamp_max_(248).unsqueeze(1);
  const torch::Tensor scales =
      scales_of(exponents).expand({-1, block}).reshape({-1}).narrow(0, 0, count);
  return codes.to(torch::kFloat)
      .mul_(scales)
      .masked_fill_(codes.eq(-128), std::numeric_limits<double>::quiet_NaN());
}

// How signs and scales of `count` elements lie in bytes: whole sections, and then the rest.
struct SignLayout {
  std::int64_t bytes(std::int64_t elements) const {
    return static_cast<std::int64_t>(how.number_bytes(static_cast<std::size_t>(elements)));
  }
  static std::int64_t sign_bytes(std::int64_t elements) { return (elements + 63) / 64 * 8; }
  std::int64_t scale_bytes(std::int64_t elements) const {
    return bytes(elements) - sign_bytes(elements);
  }
  std::int64_t block() const { return static_cast<std::int64_t>(how.block); }
  std::int64_t section() const { return static_cast<std::int64_t>(how.section); }
  std::int64_t whole_sections() const { return count / section(); }
  std::int64_t rest() const { return count % section(); }

  const codec::Extraction& how;
  std::int64_t count;
};

// The bytes of `sections` sections of `elements` elements each, from element `first` on.
torch::Tensor sections_of(const torch::Tensor& signs, const torch::Tensor& scales,
                          const SignLayout& layout, std::int64_t first, std::int64_t sections,
                          std::int64_t elements) {
  const std::int64_t of_signs = SignLayout::sign_bytes(elements);
  const std::int64_t of_scales = layout.scale_bytes(elements);
  const auto part = [&](const torch::Tensor& bytes, std::int64_t begin, std::int64_t length) {
    return bytes.narrow(0, begin, sections * length).view({sections, length});
  };
  return torch::cat({part(signs, SignLayout::sign_bytes(first), of_signs),
                     part(scales, layout.scale_bytes(first), of_scales)},
                    1)
      .view({-1});
}

// Rounds as one_bit() does to the nearest, with the sums of kernel/quantize.cc: 16 sums, of every
// 16th magnitude, are added half by half.
torch::Tensor round_to_signs(torch::Tensor& carry, const SignLayout& layout) {
  constexpr std::int64_t kSums = 16;
  const std::int64_t block = layout.block();
  const std::int64_t blocks = (layout.count + block - 1) / block, padded = blocks * block;
  const torch::Tensor values =
      torch::constant_pad_nd(carry, {0, padded - layout.count}).view({blocks, block});
  const torch::Tensor magnitudes = values.abs().view({blocks, -1, kSums});
  torch::Tensor sums = torch::zeros({blocks, kSums}, values.options());
  for (std::int64_t row = 0; row < magnitudes.size(1); ++row) sums.add_(magnitudes.select(1, row));
  for (std::int64_t width = kSums / 2; width > 0; width /= 2) {
    sums = sums.narrow(1, 0, width).add(sums.narrow(1, width, width));
  }
  torch::Tensor lengths = torch::full({blocks, 1}, double(block), values.options());
  lengths.narrow(0, blocks - 1, 1).fill_(double(layout.count - (blocks - 1) * block));
  const torch::Tensor greatest = magnitudes_of(values).amax(1, /*keepdim=*/true);
  const torch::Tensor is_finite = greatest.lt(kInfinityBits);
  const torch::Tensor scales = torch::minimum(greatest.view(torch::kFloat), sums.div(lengths))
                                   .masked_fill(is_finite.logical_not(), NAN);
  const torch::Tensor is_negative = values.lt(0).logical_and(is_finite);
  const torch::Tensor rest = values.sub(torch::where(is_negative, scales.neg(), scales))
                                 .masked_fill_(is_finite.logical_not(), 0);
  carry.copy_(rest.view({-1}).narrow(0, 0, layout.count));
  const torch::Tensor bits = is_negative.view({-1, 8}).to(torch::kByte);
  const torch::Tensor signs =
      bits.bitwise_left_shift(torch::arange(8, bits.options())).sum(1, false, torch::kByte);
  const torch::Tensor bytes = scales.view({-1}).view(torch::kByte);
  const std::int64_t whole = layout.whole_sections();
  std::vector<torch::Tensor> parts;
  if (whole > 0) parts.push_back(sections_of(signs, bytes, layout, 0, whole, layout.section()));
  if (layout.rest() > 0) {
    parts.push_back(sections_of(signs, bytes, layout, whole * layout.section(), 1, layout.rest()));
  }
  return torch::cat(parts);
}

// The values that such signs and scales stand for.
torch::Tensor values_of_signs(const torch::Tensor& bytes, const SignLayout& layout) {
  std::vector<torch::Tensor> signs, scales;
  const auto read = [&](std::int64_t first, std::int64_t sections, std::int64_t elements) {
    if (sections * elements == 0) return;
    const std::int64_t of_signs = SignLayout::sign_bytes(elements);
    const std::int64_t length = layout.bytes(elements);
    const torch::Tensor all = bytes.narrow(0, first, sections * length).view({sections, length});
    signs.push_back(all.narrow(1, 0, of_signs).reshape({-1}));
    scales.push_back(all.narrow(1, of_signs, layout.scale_bytes(elements)).reshape({-1}));
  };
  const std::int64_t whole = layout.whole_sections();
  read(0, whole, layout.section());
  read(whole * layout.bytes(layout.section()), 1, layout.rest());
  const torch::Tensor words = torch::cat(signs).unsqueeze(1);
  const torch::Tensor bits =
      words.bitwise_right_shift(torch::arange(8, words.options())).bitwise_and(1);
  const auto spread = [&](const torch::Tensor& each) {
    return each.reshape({-1}).narrow(0, 0, layout.count);
  };
  const torch::Tensor scale =
      spread(torch::cat(scales).view(torch::kFloat).unsqueeze(1).expand({-1, layout.block()}));
  return torch::where(spread(bits).to(torch::kBool), scale.neg(), scale);
}

// Encodes `values` as numbers; `values` become the rest.
torch::Tensor round_off(torch::Tensor& values, const codec::Extraction& how) {
  if (values.numel() == 0) return torch::empty({0}, values.options().dtype(torch::kByte));
  if (!how.rounded) {
    const torch::Tensor said = values.clone().view(torch::kByte);
    values.zero_();
    return said;
  }
  torch::Tensor numbers;
  if (const auto* const kernels = kernels_for(values)) {
    const std::size_t bytes = how.number_bytes(static_cast<std::size_t>(values.numel()));
    numbers =
        torch::empty({static_cast<std::int64_t>(bytes)}, values.options().dtype(torch::kByte));
    begin(kernels->round, rounding_of(values, how, numbers), values);
    return numbers;
  }
  if (how.rounded == DType::i8) {
    numbers = round_to_int8(values, how);
  } else if (how.rounded == DType::boolean) {
    return round_to_signs(values, {how, values.numel()});
  } else {
    const double limit = how.limit;
    const torch::Tensor within = torch::where(values.isinf(), values, values.clamp(-limit, limit));
    const torch::Tensor said = within.to(scalar_type_of(*how.rounded));
    values.sub_(said.to(torch::kFloat));
    numbers = said.view(torch::kByte);
  }
  values.nan_to_num_(0.0, 0.0, 0.0);
  return numbers;
}

torch::Tensor values_of(const PlacedExtract& placed) {
  const codec::Extraction& how = placed.how;
  const torch::Tensor& numbers = placed.extract.numbers;
  if (how.rounded == DType::i8) {
    return values_of_int8(numbers, static_cast<std::int64_t>(placed.elements),
                          static_cast<std::int64_t>(how.block));
  }
  if (how.rounded == DType::boolean) {
    return values_of_signs(numbers, {how, static_cast<std::int64_t>(placed.elements)});
  }
  return numbers.view(scalar_type_of(how.rounded.value_or(DType::f32))).to(torch::kFloat);
}

void add_numbers(const torch::Tensor& values, const PlacedExtract& placed) {
  const auto* const kernels = kernels_for(values);
  if (kernels != nullptr && placed.how.rounded) {
    begin(kernels->add, rounding_of(values, placed.how, placed.extract.numbers), values);
  } else {
    values.add_(values_of(placed));
  }
}

}  // namespace

PlacedExtract extract_from(torch::Tensor& carry, const codec::Extraction& how, std::size_t first) {
  const auto count = static_cast<std::size_t>(carry.numel());
  PlacedExtract placed{.how = how, .first = first, .count = count, .elements = count};
  if (how.takes_all()) {
    placed.extract.numbers = round_off(carry, how);
    return placed;
  }
  const torch::Tensor indices =
      how.least ? find_at_least(carry, *how.least) : find_greatest(carry, how.greatest);
  if (how.least && static_cast<std::size_t>(indices.numel()) > how.most) {
    codec::Extraction all = how;
    all.least.reset();
    return extract_from(carry, all, first);
  }
  torch::Tensor values = carry.index_select(0, indices);
  placed.elements = static_cast<std::size_t>(values.numel());
  placed.extract.numbers = round_off(values, how);
  placed.extract.indices = indices.to(torch::kInt);
  carry.index_copy_(0, indices, values);
  carry.nan_to_num_(0.0, 0.0, 0.0);
  return placed;
}

void add_extracts(const torch::Tensor& sums, std::span<const PlacedExtract> extracts) {
  std::vector<torch::Tensor> indices, values;
  for (const PlacedExtract& placed : extracts) {
    if (placed.elements == 0) continue;
    if (placed.extract.indices.defined()) {
      indices.push_back(placed.extract.indices);
      values.push_back(values_of(placed));
    } else {
      add_numbers(part_of(sums, placed.first, placed.count), placed);
    }
  }
  if (indices.empty()) return;
  torch::Tensor places = torch::cat(indices);
  if (places.scalar_type() == torch::kInt) {
    constexpr std::int64_t kAllBits = 0xFFFFFFFF;
    places = places.to(torch::kLong).bitwise_and_(kAllBits).clamp_max_(sums.numel() - 1);
  }
  // No place is there twice. On a GPU, index_add_ would take denormals for zeros.
  sums.index_copy_(0, places, sums.index_select(0, places).add_(torch::cat(values)));
}

}  // namespace stretto::ddp

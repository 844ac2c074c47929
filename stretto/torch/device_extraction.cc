// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/device_extraction.h"

#include <limits>
#include <vector>

#include <c10/core/DeviceGuard.h>

#include "stretto/base/check.h"
#include "stretto/base/log.h"
#include "stretto/cuda/load_kernels.h"
#include "stretto/torch/device_tensors.h"
#include "stretto/torch/streams.h"

namespace stretto::ddp {
namespace {

// Loads our kernels, if they run on the device that is current.
Result<cuda::CodecKernels> load_working_kernels() {
  STRETTO_ASSIGN_OR_RETURN(const auto kernels, cuda::load_codec_kernels(process_environment()));
  const int error = kernels.probe();
  if (error == 0) return kernels;
  return status_of(StatusCode::system, "stretto's kernels do not run here: CUDA's error {}", error);
}

// Null where PyTorch's operators do what our kernels do: on devices of other kinds, and where these
// cannot be loaded, or do not run on the GPU that is asked about first.
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
  const bool has_blocks = how.rounded != DType::i8 || how.block == cuda::kInt8Block;
  STRETTO_CHECK(has_blocks, "kernels know no blocks of {} elements", how.block);
  const auto count = static_cast<std::size_t>(values.numel());
  auto* const first = static_cast<std::uint8_t*>(numbers.data_ptr());
  return {.values = values.data_ptr<float>(),
          .count = count,
          .dtype = *how.rounded,
          .limit = how.limit,
          .numbers = first,
          .scales = first + count};
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

// The indices of the greatest elements, ascending. Keys are magnitudes, and for equal ones how many
// elements follow: so no two are equal, and the greatest are the same on every device.
torch::Tensor find_greatest(const torch::Tensor& carry, std::size_t greatest) {
  if (const auto* const kernels = kernels_for(carry)) return select(*kernels, carry, greatest);
  constexpr std::int64_t kPlaces = std::int64_t{1} << 32;
  const std::int64_t last = carry.numel() - 1;
  torch::Tensor keys = carry.view(torch::kInt).bitwise_and(0x7FFFFFFF).to(torch::kLong);
  keys.mul_(kPlaces).add_(torch::arange(last, -1, -1, keys.options()));
  const auto count = static_cast<std::int64_t>(greatest);
  const torch::Tensor found =
      std::get<0>(keys.topk(count, /*dim=*/-1, /*largest=*/true, /*sorted=*/false));
  return std::get<0>(found.bitwise_and(kPlaces - 1).neg_().add_(last).sort());
}

// The scales that have these exponents, which are integers.
torch::Tensor scales_of(const torch::Tensor& exponents) {
  constexpr int kMantissaBits = 23;
  return exponents.bitwise_left_shift(kMantissaBits).view(torch::kFloat);
}

// As int8() to the nearest. Scales are powers of two, so nothing else rounds.
torch::Tensor round_to_int8(torch::Tensor& carry, std::int64_t block) {
  const std::int64_t count = carry.numel();
  const std::int64_t blocks = (count + block - 1) / block;
  const torch::Tensor is_number = carry.isfinite();
  const torch::Tensor values =
      torch::constant_pad_nd(carry.nan_to_num(0.0, 0.0, 0.0), {0, blocks * block - count})
          .view({blocks, block});
  const torch::Tensor magnitudes = values.view(torch::kInt).bitwise_and(0x7FFFFFFF);
  const torch::Tensor exponents =
      magnitudes.amax(1, /*keepdim=*/true).bitwise_right_shift(23).clamp_min_(7).sub_(6);
  const torch::Tensor codes =
      values.mul(scales_of(exponents.neg().add_(254))).round_().clamp_(-127, 127);
  const torch::Tensor rest = values.sub(codes.mul(scales_of(exponents)));
  carry.copy_(rest.view({-1}).narrow(0, 0, count));
  constexpr int kSaysNan = -128;
  const torch::Tensor said =
      codes.view({-1}).narrow(0, 0, count).masked_fill(is_number.logical_not(), kSaysNan);
  return torch::cat(
      {said.to(torch::kChar).view(torch::kByte), exponents.view({-1}).to(torch::kByte)});
}

// What its codes and scales stand for.
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

// The numbers that say `values`, which become what these do not say.
torch::Tensor round_off(torch::Tensor& values, const codec::Extraction& how) {
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
    numbers = round_to_int8(values, static_cast<std::int64_t>(how.block));
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
    return values_of_int8(numbers, static_cast<std::int64_t>(how.elements(placed.count)),
                          static_cast<std::int64_t>(how.block));
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

DeviceExtract extract_from(torch::Tensor& carry, const codec::Extraction& how) {
  if (how.greatest == 0) return {.numbers = round_off(carry, how)};
  const torch::Tensor indices = find_greatest(carry, how.greatest);
  torch::Tensor values = carry.index_select(0, indices);
  const torch::Tensor numbers = round_off(values, how);
  carry.index_copy_(0, indices, values);
  carry.nan_to_num_(0.0, 0.0, 0.0);
  return {indices.to(torch::kInt), numbers};
}

void add_extracts(const torch::Tensor& sums, std::span<const PlacedExtract> extracts) {
  std::vector<torch::Tensor> indices, values;
  for (const PlacedExtract& placed : extracts) {
    if (placed.how.greatest > 0) {
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

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/device_extraction.h"

#include <limits>

#include "stretto/base/round_up.h"
#include "stretto/torch/device_tensors.h"

namespace stretto::ddp {
namespace {

constexpr std::size_t kWidest = 16;  // Of an element, which lies on a multiple of its width.

// codec::Extraction::greatest. Keys are magnitudes, and for equal ones how many elements follow: so
// no two are equal, and the greatest are the same on every device.
torch::Tensor take_greatest(torch::Tensor& carry, std::size_t greatest) {
  constexpr std::int64_t kPlaces = std::int64_t{1} << 32;
  const std::int64_t last = carry.numel() - 1;
  torch::Tensor keys = carry.view(torch::kInt).bitwise_and(0x7FFFFFFF).to(torch::kLong);
  keys.mul_(kPlaces).add_(torch::arange(last, -1, -1, keys.options()));
  const auto count = static_cast<std::int64_t>(greatest);
  const torch::Tensor found =
      std::get<0>(keys.topk(count, /*dim=*/-1, /*largest=*/true, /*sorted=*/false));
  const torch::Tensor indices =
      std::get<0>(found.bitwise_and(kPlaces - 1).neg_().add_(last).sort());
  const torch::Tensor values = carry.index_select(0, indices);
  carry.index_fill_(0, indices, 0);
  return torch::cat({indices.to(torch::kInt).view(torch::kByte), values.view(torch::kByte)});
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

// codec::Extraction::rounded.
torch::Tensor round_all(torch::Tensor& carry, const codec::Extraction& how) {
  if (how.rounded == DType::i8) {
    return round_to_int8(carry, static_cast<std::int64_t>(how.block));
  }
  const double limit = how.limit;
  const torch::Tensor within = torch::where(carry.isinf(), carry, carry.clamp(-limit, limit));
  const torch::Tensor said = within.to(scalar_type_of(*how.rounded));
  carry.sub_(said.to(torch::kFloat));
  return said.view(torch::kByte);
}

}  // namespace

torch::Tensor extract_from(torch::Tensor& carry, const codec::Extraction& how) {
  const torch::Tensor extract =
      how.rounded ? round_all(carry, how) : take_greatest(carry, how.greatest);
  carry.nan_to_num_(0.0, 0.0, 0.0);
  return extract;
}

void Upload::add(const torch::Tensor& target, ConstByteSpan numbers, const codec::Extraction& how) {
  const auto at = static_cast<std::size_t>(numbers.data() - messages_.data());
  pieces_.push_back({target, true, *how.rounded, numbers.size(), at});
  pieces_.back().block = static_cast<std::int64_t>(how.block);
}

void Upload::set(const torch::Tensor& target, ConstByteSpan elements, DType dtype) {
  pieces_.push_back({target, false, dtype, elements.size(), append(elements)});
}

void Upload::name(std::size_t first, const codec::Extract& extract) {
  for (const std::uint32_t index : extract.indices) {
    indices_.push_back(static_cast<std::int64_t>(first + index));
  }
  values_.insert(values_.end(), extract.values.begin(), extract.values.end());
}

void Upload::put_named(const torch::Tensor& target, bool adds) {
  if (indices_.empty()) return;
  const ConstByteSpan values = std::as_bytes(std::span(values_));
  pieces_.push_back({target, adds, DType::f32, values.size(), append(values)});
  pieces_.back().indices_at = append(std::as_bytes(std::span(indices_)));
  indices_.clear();
  values_.clear();
}

std::size_t Upload::append(ConstByteSpan bytes) {
  bytes_.resize(round_up(bytes_.size(), kWidest));
  const std::size_t at = round_up(messages_.size(), kWidest) + bytes_.size();
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  return at;
}

void Upload::copy_to(torch::Device device) {
  const std::size_t first = round_up(messages_.size(), kWidest);
  const auto size = static_cast<std::int64_t>(first + bytes_.size());
  there_ = torch::empty({size}, torch::TensorOptions().dtype(torch::kByte).device(device));
  const auto copy = [&](std::size_t at, ConstByteSpan from) {
    if (from.empty()) return;
    part(at, from.size()).copy_(tensor_of(from, torch::kCPU), /*non_blocking=*/true);
  };
  copy(0, messages_);
  copy(first, bytes_);
}

torch::Tensor Upload::part(std::size_t at, std::size_t bytes) const {
  return there_.narrow(0, static_cast<std::int64_t>(at), static_cast<std::int64_t>(bytes));
}

void Upload::run(bool adds) const {
  for (const Piece& piece : pieces_) {
    if (piece.adds != adds) continue;
    torch::Tensor target = piece.target;
    const torch::Tensor bytes = part(piece.at, piece.bytes);
    const torch::Tensor numbers =
        piece.block > 0 ? values_of_int8(bytes, target.numel(), piece.block)
                        : bytes.view(scalar_type_of(piece.dtype)).to(target.scalar_type());
    if (piece.indices_at) {
      const auto length = static_cast<std::size_t>(numbers.numel()) * sizeof(std::int64_t);
      const torch::Tensor indices = part(*piece.indices_at, length).view(torch::kLong);
      adds ? target.index_add_(0, indices, numbers) : target.index_copy_(0, indices, numbers);
    } else {
      adds ? target.add_(numbers) : target.copy_(numbers);
    }
  }
}

}  // namespace stretto::ddp

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Whether gradients are compressed on a device, and by which exchange.

#include <utility>

#include "stretto/codec/low_rank.h"
#include "stretto/reducer/compressed_exchange.h"
#include "stretto/torch_device/device_compression.h"

namespace stretto::ddp {
namespace {

// Whether indices of 32 bits could name each element of all gradients in one bucket. Fewer than
// 2^31 elements leave enough for the gaps between gradients.
bool fit_one_bucket(std::span<const GradientDescription> gradients) {
  std::size_t elements = 0;
  for (const GradientDescription& gradient : gradients) elements += gradient.count;
  return elements >> 31 == 0;
}

}  // namespace

std::optional<CompressedExchange> DeviceCompression::exchange_of(
    const Codec& codec, std::span<const GradientDescription> gradients, int ranks,
    CompressedExchange wanted) {
  const auto extraction = codec.extraction(1, {});
  const bool is_known =
      wanted == CompressedExchange::gather || wanted == CompressedExchange::divide;
  // In steps of a warm-up messages may be so long that they are not gathered.
  if (!extraction || !is_known || codec.warm_up_steps() > 0) return std::nullopt;
  std::size_t of_messages = 0, of_gradients = 0;
  for (const GradientDescription& gradient : gradients) {
    if (!compresses(gradient)) continue;
    // On a GPU, PyTorch counts in signed integers of 32 bits.
    if (gradient.count >> (extraction->least ? 31 : 32) != 0) return std::nullopt;
    // Messages without a fixed length are gathered.
    of_messages += codec.message_bytes(gradient.count, 0).value_or(0);
    of_gradients += gradient.count * sizeof(float);
  }
  if (of_gradients == 0) return std::nullopt;
  const bool is_divided =
      wanted == CompressedExchange::divide ||
      divides_instead(of_messages, of_gradients, static_cast<std::size_t>(ranks));
  if (!is_divided) return CompressedExchange::gather;
  if (!extraction->takes_all()) return std::nullopt;
  return CompressedExchange::divide;
}

bool DeviceCompression::can_factor(std::span<const GradientDescription> gradients,
                                   std::size_t rank) {
  bool factors_any = false;
  for (const GradientDescription& gradient : gradients) {
    if (!compresses(gradient)) continue;
    if (gradient.count >> 32 != 0) return false;
    const auto shape = codec::matrix_shape(gradient.count, gradient.rows);
    factors_any = factors_any || are_shorter(shape, rank, gradient.count);
  }
  return factors_any;
}

std::shared_ptr<DeviceCompression> DeviceCompression::make(
    std::shared_ptr<const Compressor> compressor, CompressedExchange wanted,
    std::span<const GradientDescription> gradients, torch::Device device, int ranks,
    bool is_of_communicator) {
  const auto with = [&](std::unique_ptr<ExtractExchange> exchange) {
    return std::make_shared<DeviceCompression>(compressor, device, std::move(exchange));
  };
  if (const auto* const power_sgd = dynamic_cast<const PowerSgd*>(compressor.get())) {
    if (!can_factor(gradients, power_sgd->rank())) return nullptr;
    return with(factored_exchange_by_host(power_sgd->rank(), device));
  }
  const auto codec = std::dynamic_pointer_cast<const Codec>(compressor);
  if (codec == nullptr) return nullptr;
  if (codec->name() == "dense") {  // All gradients travel as they are.
    return with(is_of_communicator ? exchange_on_device(device) : exchange_by_host(codec, device));
  }
  const auto how = exchange_of(*codec, gradients, ranks, wanted);
  if (!how) return nullptr;
  const bool has_indices = !codec->extraction(1, {})->takes_all();
  const bool is_there = is_of_communicator && codec->has_fixed_length() &&
                        (!has_indices || fit_one_bucket(gradients));
  if (*how == CompressedExchange::divide) {
    return is_there ? with(divided_exchange_on_device(codec, device)) : nullptr;
  }
  return with(is_there ? exchange_on_device(device) : exchange_by_host(codec, device));
}

}  // namespace stretto::ddp

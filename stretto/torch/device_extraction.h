// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <torch/torch.h>

#include "stretto/base/view.h"
#include "stretto/codec/codec.h"

// What codecs leave to devices, by PyTorch's operators: so every device has it that PyTorch has,
// and on each with the bits of the host's codecs, but for those of a NaN.
namespace stretto::ddp {

// Does what `how` says with a vector of f32, and returns the bytes that come of it: indices of 32
// bits and then values, or numbers.
torch::Tensor extract_from(torch::Tensor& carry, const codec::Extraction& how);

// What becomes of vectors on a device by what the host has: messages, which go there as they are,
// and numbers, which go in one copy.
class Upload {
 public:
  // `room` keeps the numbers. It and the messages stay until the device has them.
  Upload(ConstByteSpan messages, std::vector<std::byte>& room) : messages_(messages), bytes_(room) {
    bytes_.clear();
  }

  // Adds what `how` has rounded, and stands in the messages, to `target`.
  void add(const torch::Tensor& target, ConstByteSpan numbers, const codec::Extraction& how);
  // Makes `target` what is in `elements`.
  void set(const torch::Tensor& target, ConstByteSpan elements, DType dtype);
  // The next two are about these elements, each named once, counted from `first`.
  void name(std::size_t first, const codec::Extract& extract);
  void add_named(const torch::Tensor& target) { put_named(target, true); }
  void set_named(const torch::Tensor& target) { put_named(target, false); }

  // Then what was to be added, or to be set, in order.
  void copy_to(torch::Device device);
  void run_additions() const { run(true); }
  void run_settings() const { run(false); }

 private:
  struct Piece {
    torch::Tensor target;
    bool adds = false;
    DType dtype = DType::f32;
    std::size_t bytes = 0;
    std::size_t at = 0;  // In the messages, then in the room.
    std::optional<std::size_t> indices_at = std::nullopt;
    std::int64_t block = 0;  // Of numbers with scales.
  };

  std::size_t append(ConstByteSpan bytes);
  void put_named(const torch::Tensor& target, bool adds);
  torch::Tensor part(std::size_t at, std::size_t bytes) const;
  void run(bool adds) const;

  ConstByteSpan messages_;
  std::vector<std::byte>& bytes_;
  std::vector<std::int64_t> indices_;
  std::vector<float> values_;
  std::vector<Piece> pieces_;
  torch::Tensor there_;
};

}  // namespace stretto::ddp

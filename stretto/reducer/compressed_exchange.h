// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/id.h"
#include "stretto/reducer/compressed_reduction.h"

namespace stretto {

// What is remembered of a gradient.
struct CompressedReduction::Gradient {
  std::string name;
  std::shared_ptr<const Codec> codec;  // Null: it travels as it is.
  std::vector<float> residual;         // Empty if there is no codec.
  bool has_residual = false;           // It may be other than zero.
  std::vector<float> momentum;         // Empty if there is none.
  std::vector<std::uint32_t> hints;    // Of each part, and of the sum of this rank's part.
  std::uint64_t key = 0;
  std::size_t owner = 0;  // Who adds it up where it is too small to be divided.
};

// A part of a gradient that travels as one message.
struct CompressedReduction::Part {
  std::size_t first = 0;
  std::size_t count = 0;
  codec::Position position;
};

// A bucket on its way. What it needs of the bucket is copied, so that the next may be started.
struct CompressedReduction::Exchange {
  bool is_compressed = false;
  bool is_divided = false;
  TimePoint encoded;  // When its messages were ready.
  std::vector<Gradient*> gradients;
  std::vector<std::span<float>> values;
  std::vector<std::uint8_t> silent;
  std::vector<std::optional<Rank>> stopped_by;  // Of each gradient, this rank's part of the sum.
  std::vector<std::byte> own;                   // The messages of this rank.
  std::vector<std::byte> received;     // Of all ranks, for this rank's parts, where it is divided.
  std::vector<std::byte> all;          // Of all ranks, for all.
  std::vector<std::uint64_t> lengths;  // Of what each rank has in `all`.
  std::size_t limit = 0;               // For each of them, where they are not known beforehand.
  std::optional<Duration> timeout;
  Work first;   // What comes before `all`: the lengths, or `received`.
  Work second;  // `all`, then.
};

}  // namespace stretto

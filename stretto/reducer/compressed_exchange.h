// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/id.h"
#include "stretto/base/rank_vector.h"
#include "stretto/base/view.h"
#include "stretto/codec/codec.h"
#include "stretto/codec/low_rank.h"
#include "stretto/reducer/compressed_reduction.h"

namespace stretto {

// How a gradient travels: by messages, see CompressedExchange, or as factors.
enum class CompressedReduction::Way : std::uint8_t { gathered, divided, combined, factored };
inline constexpr std::size_t kCompressedWays = 4;
// Parts of fewer elements are not worth a message each.
inline constexpr std::size_t kLeastPart = 512;

constexpr bool are_worth_parts(std::size_t elements, std::size_t ranks) {
  return elements >= ranks * kLeastPart;
}

// Whether messages of so many bytes, of a step, are divided although they are to be gathered: to
// gather them is to receive as much as an all_reduce of the gradients does, which is 2 / ranks of
// them from each other rank.
constexpr bool divides_instead(std::size_t message_bytes, std::size_t gradient_bytes,
                               std::size_t ranks) {
  return ranks > 2 && message_bytes * ranks >= 2 * gradient_bytes &&
         are_worth_parts(gradient_bytes / sizeof(float), ranks);
}

// Aborts and throws ProtocolError, which names the rank, if it announces longer messages than there
// can be.
void check_announced(Communicator& communicator, std::size_t bytes, std::size_t longest,
                     std::size_t rank);

inline std::span<float> floats(const View& view) {
  return {reinterpret_cast<float*>(view.data), view.count};
}

// What one rank adds up of a divided gradient.
struct AddedPart {
  std::size_t first = 0;  // Element of the gradient.
  std::size_t count = 0;
};
// Who adds up all of a gradient that is too small to be divided.
constexpr std::size_t owner_of(std::size_t gradient, std::size_t ranks) { return gradient % ranks; }
constexpr AddedPart part_added_by(std::size_t adder, std::size_t elements, std::size_t owner,
                                  std::size_t ranks) {
  if (!are_worth_parts(elements, ranks)) return {0, adder == owner ? elements : 0};
  const std::size_t first = adder * elements / ranks;
  return {first, (adder + 1) * elements / ranks - first};
}
// What sums of messages are divided by before they are encoded again by a codec that is bounded: so
// they are not beyond its bound. A power of two, which rounds nothing.
inline int divisor_of_sums(const Codec& codec, int ranks) {
  return codec.is_bounded() ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(ranks))) : 1;
}

// Why a bucket travels as it is in a step that is compressed: none of its gradients has a codec.
inline CompressionReason reason_without_codec(std::span<const View> gradients,
                                              std::size_t min_elements) {
  const auto is_small = [=](const View& view) { return view.count < min_elements; };
  return std::ranges::all_of(gradients, is_small) ? CompressionReason::too_small
                                                  : CompressionReason::no_codec;
}

// Begins the statistics of a step that has so many buckets. The list of these keeps its memory.
inline void begin_statistics(CompressionStatistics& statistics, std::uint64_t step, bool compressed,
                             std::size_t buckets) {
  auto choices = std::move(statistics.choices);
  choices.assign(buckets, {});
  statistics = {.step = step, .compressed = compressed, .choices = std::move(choices)};
}

// Whether factors of this rank are shorter than the gradient: rank * (rows + columns) < count.
constexpr bool are_shorter(const codec::MatrixShape& shape, std::size_t rank, std::size_t count) {
  return count > 0 && rank <= (count - 1) / (shape.rows + shape.columns);
}

// The matrices whose product stands for a gradient.
struct Factors {
  // Whether the sum of all ranks' left factors is zero: then there is no product.
  bool found_nothing() const;
  bool is_finite() const;
  void draw_right(std::uint64_t key);
  // A column that found nothing in this step would never find anything again. Returns whether there
  // was one.
  bool draw_zero_columns(std::uint64_t key);

  std::size_t rank = 0;  // 0: it has none.
  codec::MatrixShape shape;
  std::vector<float> left;
  std::vector<float> right;  // What the next step begins with.
};

// What is remembered of a gradient.
struct CompressedReduction::Gradient {
  // The state before the step. It is restored if no rank has computed the gradient in the step.
  struct Remembered {
    std::vector<float> residual;
    std::vector<float> momentum;
    std::vector<float> right;
    std::vector<std::uint32_t> hints;
    bool has_residual = false;
    bool has_all = false;  // Else residual and momentum do not change in the step.
  };

  // A vector without a state has no name.
  std::string described() const { return name.empty() ? "the vector" : "gradient " + name; }

  std::string name;
  std::size_t first = 0;                         // See GradientDescription.
  std::shared_ptr<const Compressor> compressor;  // Null: it travels as it is.
  const Codec* codec = nullptr;                  // The same, if it makes messages.
  Factors factors;                               // If it does not.
  bool has_fixed_length = false;                 // Its messages.
  // Empty if there is no codec. While factors are on their way, all that they are to stand for.
  std::vector<float> residual;
  bool has_residual = false;         // It may be other than zero.
  std::vector<float> momentum;       // Empty if there is none.
  std::vector<std::uint32_t> hints;  // Of each part, and of the sum of this rank's part.
  std::uint64_t key = 0;
  std::size_t owner = 0;  // Who adds it up where it is too small to be divided.
  Remembered before;
};

// A part of a gradient that travels as one message.
struct CompressedReduction::Part {
  std::size_t first = 0;
  std::size_t count = 0;
  codec::Position position;
};

// The gradients of a bucket that travel in one way, on theirs. What they need of the bucket is
// copied, so that the next may be started.
struct CompressedReduction::Exchange {
  // What is submitted when the operation under way has ended.
  enum class Next : std::uint8_t {
    part_lengths,
    parts,
    lengths,
    messages,
    left_factors,
    right_factors,
    nothing
  };
  // What a rank says before its messages.
  struct Announcement {
    std::uint64_t length = 0;
    std::uint64_t encoded = 0;  // Of what it has made of gradients without a fixed length.
  };

  bool has_parts() const { return way == Way::divided || way == Way::combined; }
  bool announces() const { return way == Way::combined || !has_fixed_length; }
  void clear();

  Way way = Way::gathered;
  bool has_fixed_length = true;  // What ranks have made of their gradients.
  TimePoint encoded;             // When its messages were ready.
  double codec_seconds = 0;      // Between its first operation and its last one.
  std::vector<Gradient*> gradients;
  std::vector<std::span<float>> values;
  std::vector<std::uint8_t> silent;
  std::vector<std::optional<Rank>> stopped_by;  // Of each gradient, this rank's part of the sum.
  std::vector<std::byte> own;                   // The messages of this rank.
  // Their lengths for each rank, and what each rank has for this one. Here, so that they keep their
  // memory.
  AllToAllOptions parts;
  std::vector<std::byte> received;   // Of all ranks, for this rank's parts.
  std::vector<std::byte> all;        // Of all ranks, for all.
  std::vector<std::size_t> lengths;  // Of each rank.
  RankVector<Announcement> announced;
  AllGatherOptions messages;  // Their lengths, where these are not all the same.
  std::vector<float> left;    // Factors of all gradients, one behind the other.
  std::vector<float> right;
  ReduceOp op = ReduceOp::mean;
  std::optional<Duration> timeout;
  Next next = Next::nothing;
  Work work;
};

// What is under way of a bucket.
struct CompressedReduction::Bucket {
  bool is_compressed = false;
  std::array<Exchange, kCompressedWays> exchanges;  // By Way; empty where nothing travels so.
  std::vector<float> plain;  // One behind the other: gradients without a codec, beside others.
};

}  // namespace stretto

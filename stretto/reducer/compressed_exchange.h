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
#include "stretto/base/random.h"
#include "stretto/base/rank_vector.h"
#include "stretto/base/view.h"
#include "stretto/codec/codec.h"
#include "stretto/codec/low_rank.h"
#include "stretto/reducer/compressed_reduction.h"

namespace stretto {

// How a gradient travels: in messages, see CompressedExchange, or as factors.
enum class CompressedReduction::Way : std::uint8_t { gathered, divided, combined, factored };
inline constexpr std::size_t kCompressedWays = 4;
// Parts with fewer elements are not worth a message each.
inline constexpr std::size_t kLeastPart = 512;

constexpr bool are_worth_parts(std::size_t elements, std::size_t ranks) {
  return elements >= ranks * kLeastPart;
}

// Whether a step with so many bytes of messages divides although `gather` is set: if gathering
// would receive as much as an all_reduce of the gradients, which is 2 / ranks of their bytes from
// each other rank.
constexpr bool divides_instead(std::size_t message_bytes, std::size_t gradient_bytes,
                               std::size_t ranks) {
  return ranks > 2 && message_bytes * ranks >= 2 * gradient_bytes &&
         are_worth_parts(gradient_bytes / sizeof(float), ranks);
}

// Throws ProtocolError, after an abort, if `rank` announces more `bytes` than the `longest`
// possible messages have.
void check_announced(Communicator& communicator, std::size_t bytes, std::size_t longest,
                     std::size_t rank);

inline std::span<float> floats(const View& view) {
  return {reinterpret_cast<float*>(view.data), view.count};
}

// The part of a divided gradient that one rank adds up.
struct AddedPart {
  std::size_t first = 0;  // In the gradient.
  std::size_t count = 0;
};
// The rank that adds up all of a gradient that is too small to be divided.
constexpr std::size_t owner_of(std::size_t gradient, std::size_t ranks) { return gradient % ranks; }
constexpr AddedPart part_added_by(std::size_t adder, std::size_t elements, std::size_t owner,
                                  std::size_t ranks) {
  if (!are_worth_parts(elements, ranks)) return {0, adder == owner ? elements : 0};
  const std::size_t first = adder * elements / ranks;
  return {first, (adder + 1) * elements / ranks - first};
}
// Position::own_key of a message of `rank` of a gradient; for that of a sum, `rank` is the rank
// plus their number. `part`: 0 for a whole gradient, else 1 + the rank that adds the part up.
constexpr std::uint64_t own_key(std::uint64_t of_gradient, std::uint64_t part, std::uint64_t rank) {
  if (part > 0) of_gradient = Random(of_gradient ^ part).next();
  return Random(of_gradient + rank).next();
}
// Sums of messages are divided by this before a bounded codec encodes them again, so that they do
// not exceed its bound. A power of two, so that nothing is rounded.
inline int divisor_of_sums(const Codec& codec, int ranks) {
  return codec.is_bounded() ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(ranks))) : 1;
}

// Why a bucket is not compressed in a compressed step: none of its gradients has a codec.
inline CompressionReason reason_without_codec(std::span<const View> gradients,
                                              std::size_t min_elements) {
  const auto is_small = [=](const View& view) { return view.count < min_elements; };
  return std::ranges::all_of(gradients, is_small) ? CompressionReason::too_small
                                                  : CompressionReason::no_codec;
}

// Begins the statistics of a step with so many buckets. The list of buckets keeps its memory.
inline void begin_statistics(CompressionStatistics& statistics, std::uint64_t step, bool compressed,
                             std::size_t buckets) {
  auto choices = std::move(statistics.choices);
  choices.assign(buckets, {});
  statistics = {.step = step, .compressed = compressed, .choices = std::move(choices)};
}

// Whether factors of this rank have fewer numbers than the gradient: rank * (rows + columns) <
// count.
constexpr bool are_shorter(const codec::MatrixShape& shape, std::size_t rank, std::size_t count) {
  return count > 0 && rank <= (count - 1) / (shape.rows + shape.columns);
}

// The matrices whose product approximates a gradient.
struct Factors {
  // Whether the sum of all ranks' left factors is zero. Then there is no product.
  bool found_nothing() const;
  bool is_finite() const;
  void draw_right(std::uint64_t key);
  // Draws columns that are zero anew, because they would stay zero in all later steps. Returns
  // whether there was one.
  bool draw_zero_columns(std::uint64_t key);

  std::size_t rank = 0;  // 0: the gradient has no factors.
  codec::MatrixShape shape;
  std::vector<float> left;
  std::vector<float> right;  // The next step begins with them.
};

// The state of a gradient.
struct CompressedReduction::Gradient {
  // The state before the step. It is restored if no rank has computed the gradient in the step.
  struct Remembered {
    std::vector<float> residual;
    std::vector<float> momentum;
    std::vector<float> right;
    std::vector<std::uint32_t> hints;
    bool has_residual = false;
    bool has_all = false;  // If false, residual and momentum do not change in the step.
  };

  // A vector without a state has no name.
  std::string described() const { return name.empty() ? "the vector" : "gradient " + name; }

  std::string name;
  std::size_t first = 0;                         // See GradientDescription.
  std::shared_ptr<const Compressor> compressor;  // Null: the gradient travels as it is.
  const Codec* codec = nullptr;                  // The compressor, if it makes messages.
  Factors factors;                               // If the compressor makes factors.
  bool has_fixed_length = false;                 // Of its messages.
  // Empty without a compressor. While factors are in flight: all that they approximate.
  std::vector<float> residual;
  bool has_residual = false;         // False: the residual is zero.
  std::vector<float> momentum;       // Empty without momentum.
  std::vector<std::uint32_t> hints;  // For each part, and for the sum of this rank's part.
  std::uint64_t key = 0;
  std::size_t owner = 0;  // The rank that adds it up if it is too small to be divided.
  Remembered before;
};

// A part of a gradient that travels as one message.
struct CompressedReduction::Part {
  std::size_t first = 0;
  std::size_t count = 0;
  codec::Position position;
};

// The gradients of a bucket that travel in the same way, and their operations. What these need of
// the bucket is copied, so that the next bucket may start.
struct CompressedReduction::Exchange {
  // What is submitted when the operation in flight has ended.
  enum class Next : std::uint8_t {
    part_lengths,
    parts,
    lengths,
    messages,
    left_factors,
    right_factors,
    nothing
  };
  // What a rank announces before its messages.
  struct Announcement {
    std::uint64_t length = 0;
    std::uint64_t encoded = 0;  // Of gradients whose messages have no fixed length.
  };

  bool has_parts() const { return way == Way::divided || way == Way::combined; }
  bool announces() const { return way == Way::combined || !has_fixed_length; }
  void clear();

  Way way = Way::gathered;
  bool has_fixed_length = true;  // All messages of its gradients.
  TimePoint encoded;             // When its messages were ready.
  double codec_seconds = 0;      // From its first operation to its last one.
  std::vector<Gradient*> gradients;
  std::vector<std::span<float>> values;
  std::vector<std::uint8_t> silent;
  std::vector<std::optional<Rank>> stopped_by;  // Who has stopped this rank's part of a sum.
  std::vector<std::byte> own;                   // The messages of this rank.
  // Lengths for each rank, and from each rank. A member, so that the lists keep their memory.
  AllToAllOptions parts;
  std::vector<std::byte> received;   // From all ranks, for this rank's parts.
  std::vector<std::byte> all;        // From all ranks, for all ranks.
  std::vector<std::size_t> lengths;  // Bytes in `all`, by rank.
  RankVector<Announcement> announced;
  AllGatherOptions messages;  // Has the lengths if they are not all the same.
  std::vector<float> left;    // The factors of all gradients, one after the other.
  std::vector<float> right;
  ReduceOp op = ReduceOp::mean;
  std::optional<Duration> timeout;
  Next next = Next::nothing;
  Work work;
};

// The part of a bucket that is in flight.
struct CompressedReduction::Bucket {
  bool is_compressed = false;
  std::array<Exchange, kCompressedWays> exchanges;  // By Way; perhaps without gradients.
  std::vector<float> plain;  // Gradients without a codec in a compressed bucket.
};

}  // namespace stretto

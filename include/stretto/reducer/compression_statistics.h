// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace stretto {

// Why a bucket travelled as it did in a step.
enum class CompressionReason : std::uint8_t {
  always,       // Compressed: Compression::always.
  never,        // As it is: Compression::never.
  dense_steps,  // As it is: the step is one of CompressionOptions::dense_steps.
  warm_up,      // As it is: Compression::automatic waits for the end of a warm-up.
  on_trial,     // Compressed or not: Compression::automatic tries both ways in turns.
  measured,     // Compressed or not: the faster way, as the last trial has found.
  predicted,    // As it is: the last trial ended early, because encoding and decoding, and the
                // messages as the model of the links predicts them, take longer than a dense step.
  too_small,    // As it is: each of its gradients has fewer elements than min_elements.
  no_codec,     // As it is: no gradient has a codec, for another reason, such as its dtype.
  left_out,     // Nothing was sent, as no rank has used a gradient of the bucket.
};

// The name of the constant: "measured".
std::string_view name(CompressionReason reason);

// What happened to one bucket in a step. With TwoLevelReduction between hosts, only buckets of f32
// are counted.
struct BucketCompression {
  bool compressed = false;  // Gradients without a codec in the same bucket travel as they are.
  CompressionReason reason = CompressionReason::left_out;
  double codec_seconds = 0;  // Encoding and decoding, in this step.
};

// What a trial of Compression::automatic has measured. Whole steps are timed, from the first full
// bucket to the end: buckets overlap with each other and with backward, and one decision holds for
// all of them. For CompressionReason::measured: means over all ranks of medians over steps. For
// CompressionReason::predicted: means over all ranks of their shortest step without compression,
// and of the codecs' time in one step with it.
struct CompressionMeasurement {
  double dense_seconds = 0;  // A step without compression.
  double codec_seconds = 0;  // Encoding and decoding in a compressed step.
  double other_seconds = 0;  // The rest of a compressed step: messages, waiting, the rest of
                             // backward. For CompressionReason::predicted: only messages, as the
                             // model of the links predicts them; 0 if it predicts nothing.
  // Time that a compressed step saves: the median over pairs of one step of each way. Negative if
  // it loses; for CompressionReason::predicted, it loses at least this.
  double saved_seconds = 0;
};

// Cost of the last step of this rank.
struct CompressionStatistics {
  std::uint64_t step = 0;          // Counted from 1.
  bool compressed = false;         // False: as it is, see Compression.
  std::size_t buckets = 0;         // Those with a compressed gradient.
  std::size_t gradient_bytes = 0;  // Of the gradients that were compressed.
  std::size_t message_bytes = 0;   // Of the messages and factors that this rank made of them.
  std::size_t received_bytes = 0;  // From other ranks, without gradients that travel as they are.
  std::size_t elements = 0;        // Of the compressed gradients.
  std::size_t sent_values = 0;     // In these messages and factors.
  double encode_seconds = 0;
  // Sum over buckets, from each encoding to the next computation on its result. These times
  // overlap, with each other and with backward.
  double exchange_seconds = 0;
  double decode_seconds = 0;
  // With CompressionOptions::measure_norms: Euclidean norms of what was added to the residuals, and
  // of the residuals after the step.
  double gradient_norm = 0;
  double residual_norm = 0;
  // For each bucket, in the order of reduction.
  std::vector<BucketCompression> choices = {};
  // Equal on all ranks. Empty before the end of the first trial and without Compression::automatic.
  std::optional<CompressionMeasurement> measured = std::nullopt;
};

}  // namespace stretto

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
  on_trial,     // Either: Compression::automatic tries both ways in turns.
  measured,     // Either: what the last trial has found to be faster.
  predicted,    // As it is: the last trial ended early, because encoding and decoding, and the
                // messages as the model of the links predicts them, take longer than a dense step.
  too_small,    // As it is: each of its gradients has fewer elements than min_elements.
  no_codec,     // As it is: no gradient has a codec, for other reasons, such as its type.
  left_out,     // Nothing was sent: no rank has used a gradient of the bucket.
};

// "measured": as the constants are called.
std::string_view name(CompressionReason reason);

// What became of one bucket in a step: with TwoLevelReduction between hosts, of one of those of
// f32.
struct BucketCompression {
  bool compressed = false;  // Gradients without a codec, next to others, still travel as they are.
  CompressionReason reason = CompressionReason::left_out;
  double codec_seconds = 0;  // Encoding and decoding, in this step.
};

// What a trial of Compression::automatic has measured: of whole steps, from the first full bucket
// to the end, since only these can be compared. Buckets overlap with each other and with backward,
// and the decision is one for all of them. CompressionReason::measured: the means over all ranks of
// medians over steps. CompressionReason::predicted: the means over all ranks of their shortest step
// without compression and of the codecs' time in one step with it.
struct CompressionMeasurement {
  double dense_seconds = 0;  // A step without compression.
  double codec_seconds = 0;  // Of a step with it: encoding and decoding.
  double other_seconds = 0;  // Of a step with it: everything else, such as messages, waiting, and
                             // the rest of backward. CompressionReason::predicted: of the messages
                             // only, as the model of the links predicts; 0 if it says nothing.
  // What a compressed step saves: the median over pairs of steps, one of each way. Negative: what
  // it loses; CompressionReason::predicted: what it loses at least.
  double saved_seconds = 0;
};

// What the last step of this rank cost.
struct CompressionStatistics {
  std::uint64_t step = 0;          // Counted from 1.
  bool compressed = false;         // Or as it is: see Compression.
  std::size_t buckets = 0;         // With a gradient that was compressed.
  std::size_t gradient_bytes = 0;  // Of the gradients that codecs saw.
  std::size_t message_bytes = 0;   // Of the messages, or factors, that this rank has made of them.
  std::size_t received_bytes = 0;  // From other ranks, without gradients that travel as they are.
  std::size_t elements = 0;        // Of these gradients.
  std::size_t sent_values = 0;     // In these messages and factors.
  double encode_seconds = 0;
  // From each encoding of a bucket to what is computed of it next, for all together: these overlap,
  // with each other and with backward.
  double exchange_seconds = 0;
  double decode_seconds = 0;
  // Euclidean, if CompressionOptions::measure_norms: of what was added to the residuals, and of
  // these after the step.
  double gradient_norm = 0;
  double residual_norm = 0;
  // Of each bucket, in the order of reduction.
  std::vector<BucketCompression> choices = {};
  // The same on all ranks. None until the first trial has ended, or without Compression::automatic.
  std::optional<CompressionMeasurement> measured = std::nullopt;
};

}  // namespace stretto

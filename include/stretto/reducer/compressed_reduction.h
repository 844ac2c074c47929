// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stretto/codec/codec.h"
#include "stretto/reducer/communication_hook.h"
#include "stretto/reducer/compression_statistics.h"

namespace stretto {

namespace reducer {
struct SavedState;
}

// Whether gradients are compressed.
enum class Compression {
  always,
  automatic,  // As long as it pays: what steps take is measured with and without, now and then, and
              // all ranks switch in the same step. The log has a line for each decision. Until the
              // end of a warm-up gradients travel as they are: what its messages cost says nothing
              // about later ones.
  never,
};

// Who adds up what ranks have sent. How a gradient travels depends on its codec and the step, and
// not on its bucket.
enum class CompressedExchange : std::uint8_t {
  gather,  // Every rank gets the messages of all ranks, so each of p ranks receives p - 1. If that
           // is as much in a step as an all_reduce of the gradients as they are, the step divides.
           // Messages that have no fixed length combine after a step in which it was as much.
  divide,  // Each rank gets the others' messages for one part of each gradient, adds these up and
           // sends all ranks a message of the sum, made by the same codec; what that does not say
           // joins its residual. The limits of f16() and of clip hold for ranks, not for sums. Each
           // receives less than two messages, headers aside, however many ranks there are: of
           // top_k(0.01) all ranks get 1 % of the sums' elements. One more operation, which the
           // next bucket's start() waits for. Messages without a fixed length combine.
  combine,  // The same, but the whole sum is sent, by nonzeros(): nothing is chosen twice. Each
            // receives a message and the sums, which are no longer than the gradients. Two more
            // operations, or three if messages have no fixed length; each waits for the one before,
            // and leaves in the start() of another bucket.
  automatic,  // What the model of the links predicts to be the fastest, found out by attach(); of
              // messages without a fixed length, from how many bytes on they combine. As `gather`
              // where there is no model, as between processes of one host.
};

// What CompressedExchange::automatic has chosen by. It counts no time of codecs.
struct ExchangePrediction {
  // Of one rank's messages of a step, without those whose length is not fixed.
  std::size_t message_bytes = 0;
  // What the model of the links predicts for them; NaN where it says nothing.
  double gathered_seconds = std::numeric_limits<double>::quiet_NaN();
  double divided_seconds = std::numeric_limits<double>::quiet_NaN();
  // As if ranks chose their elements independently.
  double combined_seconds = std::numeric_limits<double>::quiet_NaN();
  // Messages without a fixed length combine from so many bytes on, of all ranks in the step before;
  // none: never.
  std::optional<std::uint64_t> combines_from = std::nullopt;

  bool is_known() const { return gathered_seconds > 0 && divided_seconds > 0; }
};

// What compresses some gradients.
struct CompressionRule {
  std::string pattern;  // Of the gradient's name; * stands for any letters.
  std::shared_ptr<const Compressor> codec;
  bool operator==(const CompressionRule&) const = default;
};

// Must be equal on all ranks.
struct CompressionOptions {
  std::shared_ptr<const Compressor> codec = top_k();
  // For the gradients that they name; the first that fits counts.
  std::vector<CompressionRule> rules = {};
  // Gradients with fewer elements, which no rule names, travel as they are.
  static constexpr std::size_t kMinElements = 1024;
  std::size_t min_elements = kMinElements;
  // So many steps from the first on are not compressed.
  std::uint64_t dense_steps = 0;
  // Keep what a message does not say, and add it to the next gradient. Without it, it is lost.
  bool error_feedback = true;
  // Holds for all gradients of f32, also where they travel as they are or as factors. What stops a
  // step then is the sum of all ranks, and no rank is named. With `send`, infinity or NaN makes
  // all of a gradient that travels as factors NaN, and so do numbers whose products are infinite.
  // With `zero`, what is infinite or NaN in a rank's gradient becomes zero before it is clipped and
  // before momentum and residual are added; so does what is in the sum of all, and such products
  // make the gradient zero.
  NonFinite non_finite = NonFinite::send;
  // What Deep Gradient Compression (Lin et al., 2018) does before gradients are compressed:
  // Momentum correction: each rank adds its gradients up with this momentum, and sends that. The
  // optimizer must have no momentum of its own then. Of all gradients of f32; costs a vector for
  // each of them.
  float momentum = 0;
  // Of elements that a sparse message has sent, the momentum begins anew; so not where nonzeros()
  // sends all. The paper does so; off, because it made learning worse where we tried it:
  // docs/measurements/convergence.md.
  bool mask_momentum = false;
  // A gradient whose norm on a rank is above this / sqrt(ranks) is scaled down to that. 0: none.
  float clip_norm = 0;
  CompressedExchange exchange = CompressedExchange::gather;  // Of messages.
  Compression compression = Compression::always;
  // Of random choices.
  std::uint64_t seed = 0;
  // Also measure the norms in CompressionStatistics, which costs another look at everything.
  bool measure_norms = false;
  bool operator==(const CompressionOptions&) const = default;  // With the same codecs.
};

// Reduces gradients of f32 by messages of codecs: see CompressedExchange. Messages of ranks 0, 1, 2
// and so on are decoded in this order, and added up in f32, so that all ranks have the same bits.
// What a message does not say stays in a residual that belongs to the gradient, by its name: it
// survives new buckets and new reducers, and is saved.
//
// Gradients whose codec is power_sgd() are reduced by two all_reduces for each bucket, of their
// left factors and of their right ones; what the product lacks of a rank's gradient stays in its
// residual, and the right factors are what the next step begins with.
//
// Gradients that have no codec, and all of a step that is not compressed, are reduced by an
// all_reduce, residuals included. Such a step, but for dense_steps, is that of a PlainReduction:
// its buckets finish early, and those that nobody uses are left out.
//
// Gathering pays while messages are shorter than about 2 / p of the gradients. Memory: a residual
// for each gradient that has a codec, factors, the messages of all ranks, and for encoding room for
// as many numbers and indices as are looked at, at most those of the longest gradient. A step
// allocates nothing once the messages have reached their length, but for what a rank has sent
// before it was asked for beyond 256 KiB.
//
// A codec whose messages have no fixed length (threshold()) costs one more small operation for each
// bucket, and its messages leave when the next bucket is full, as right factors do; start() then
// waits for the operation before, and in the few steps in which `automatic` decides, for the
// decision.
//
// Operations other than sum and mean throw InvalidArgument from start(). In a step in which a rank
// has not computed a gradient (find_unused, frozen), the residual that it has of it waits.
class CompressedReduction : public CommunicationHook {
 public:
  explicit CompressedReduction(CompressionOptions options = {});
  ~CompressedReduction() override;

  std::string name() const override;
  // Throws Mismatch, on all ranks, naming both sides, unless all ranks have the same codecs and the
  // same settings; InvalidArgument, on all ranks, if what was loaded on one is of another number of
  // ranks, of another rank, of another model, or does not fit a gradient, and if two gradients of
  // f32 have the same name. A gradient that has got another length begins anew. Warns of rules that
  // fit nothing, where no gradient is of f32, and of what was loaded and is of no gradient.
  void attach(Communicator& communicator, std::span<const GradientDescription> gradients) override;
  Work start(Communicator& communicator, const FullBucket& bucket) override;
  // Throws what decoding fails with, and then has aborted the communicator, unless all ranks find
  // the same.
  void finish(const FullBucket& bucket) override;
  void forget(std::span<const std::size_t> gradients) override;
  // In a step that is not compressed, unless that is measured and the next one may be.
  bool finishes_early() const override { return finishes_early_; }

  // Keeps this rank's step and all its residuals and momenta, bit for bit.
  std::vector<std::byte> save() const override;
  // Throws InvalidArgument as attach() does, after which it does.
  void load(std::span<const std::byte> state) override;
  // What save() has returned on ranks 0, 1, 2, ..., for another number of ranks, so that what has
  // not been sent yet counts in the next step as it would have: the first gets the sum of all
  // residuals, in this order, the others get zeros, and each gets an equal share of the momenta.
  // For `op` mean, which divides by the number of ranks, both times the new number by the old.
  // Throws InvalidArgument if these are no such states, or `ranks` is 0.
  static std::vector<std::vector<std::byte>> redistribute(
      std::span<const std::vector<std::byte>> states, std::size_t ranks,
      ReduceOp op = ReduceOp::mean);

  const CompressionStatistics& last_step() const { return last_step_; }
  const CompressionStatistics* last_compression() const override { return &last_step_; }
  // "divided: the model of the links predicts ...": which exchange, and why. Since attach().
  const std::string& exchange_reason() const { return exchange_reason_; }
  // The same on all ranks, since attach(); where the model of the links was asked only.
  const ExchangePrediction& exchange_prediction() const { return prediction_; }
  // Of the gradient of this name; empty if it has none.
  std::span<const float> residual(const std::string& name) const;

 protected:
  // Ends what start() has begun, beside its Work, of a bucket that finish() is not called for: as a
  // Work that is destroyed, and so at once where an exception unwinds the stack.
  void abandon(std::size_t bucket);

 private:
  struct Gradient;
  struct Part;
  struct Exchange;
  struct Bucket;
  enum class Way : std::uint8_t;
  class Trial;

  std::shared_ptr<const Compressor> codec_for(const GradientDescription& gradient) const;
  void describe(const GradientDescription& description, Gradient& gradient) const;
  void restore(const reducer::SavedState& state);
  void choose_exchange(Communicator& communicator);
  void predict_exchange(Communicator& communicator);
  // Of what has a codec whose messages have a fixed length, but for the last.
  struct Bytes {
    std::size_t of_messages = 0;  // Of one rank.
    std::size_t of_parts = 0;     // The same where messages are divided.
    std::size_t of_gradients = 0;
    std::size_t of_sums = 0;  // As far as that can be foretold.
    std::size_t without_fixed_length = 0;
    bool has_factors = false;  // That some gradient has.
  };
  std::string reason_for(bool is_divided, const Bytes& bytes) const;
  Bytes bytes_in_step(std::uint64_t step) const;
  bool divides_in_step(std::uint64_t step) const;
  std::array<double, 4> predictions(const Communicator& communicator, const Bytes& bytes) const;
  Way way_of(const Gradient& gradient) const;
  bool has_codec(std::size_t gradient) const;
  CompressionReason choose(Communicator& communicator, const std::optional<Duration>& timeout);
  void begin_step(Communicator& communicator, const FullBucket& full);
  void note_choice(const FullBucket& full, bool has_any);
  void keep_remembered(const FullBucket& full);
  Work start_messages(Communicator& communicator, const FullBucket& full, Bucket& bucket);
  void sort_gradients(const FullBucket& full, Bucket& bucket);
  void submit_next(Communicator& communicator, Exchange& exchange);
  void advance(Communicator& communicator);
  void submit_rest(Communicator& communicator, const FullBucket& full);
  Part part_of(const Exchange& exchange, std::size_t i, std::size_t adder, bool of_sum) const;
  void submit_parts(Communicator& communicator, Exchange& exchange);
  void submit_lengths(Communicator& communicator, Exchange& exchange);
  void submit_messages(Communicator& communicator, Exchange& exchange);
  std::size_t longest(const Exchange& exchange, std::size_t adder, bool of_sum) const;
  const Codec& codec_of(const Exchange& exchange, std::size_t i, bool of_sum) const;
  void encode(Exchange& exchange);
  int divisor_of(const Exchange& exchange, std::size_t i) const;
  std::size_t encode_parts(Exchange& exchange, std::size_t adder, bool of_sum);
  void find_left_factors(Exchange& exchange);
  void find_right_factors(Exchange& exchange);
  void count_factors(std::span<const float> factors);
  void multiply_factors(Exchange& exchange);
  void add_up(Exchange& exchange);
  void decode_parts(Exchange& exchange, std::span<const std::byte> messages, std::size_t from,
                    std::size_t adder, bool of_sum);
  void refuse_message(const Exchange& exchange, std::size_t i, std::size_t from, bool is_of_sum,
                      const Status& why);
  void clip_and_add_momentum(const FullBucket& bucket);
  void add_residuals(const FullBucket& bucket);
  void check_sums(const FullBucket& full) const;
  void finish_messages(const FullBucket& full, Bucket& bucket);
  void decode(Exchange& exchange);
  template <class Use>
  static void for_each_rank(const Exchange& exchange, std::size_t begin, const Use& use);
  void decode_by_sections(Exchange& exchange);

  const CompressionOptions options_;
  std::map<std::string, std::unique_ptr<Gradient>> gradients_;
  std::vector<Gradient*> by_index_;               // Null: not of f32.
  std::vector<std::unique_ptr<Bucket>> buckets_;  // By index.
  std::vector<Exchange*> pending_;                // Of which something is yet to be submitted.
  std::unique_ptr<Trial> trial_;
  Communicator* communicator_ = nullptr;
  int rank_ = 0;
  int ranks_ = 0;
  std::unique_ptr<reducer::SavedState> loaded_;  // Until it is attached.
  std::uint32_t context_hash_ = 0;               // Hash of name().
  std::uint64_t step_ = 0;
  std::optional<std::uint64_t> bucket_step_;  // FullBucket::step of the step that has begun.
  std::uint64_t warm_up_steps_ = 0;
  bool compresses_ = true;                                // This step.
  CompressionReason reason_ = CompressionReason::always;  // For that.
  std::atomic<bool> finishes_early_ = false;              // Asked by threads that make gradients.
  bool divides_ = false;
  bool divides_step_ = false;   // This one.
  bool combines_step_ = false;  // Messages without a fixed length.
  float announced_ = 0;  // Bytes of these, of all ranks in the last step; agreed on by attach().
  std::uint64_t announcing_ = 0;  // In this one so far.
  std::string exchange_reason_;
  ExchangePrediction prediction_;
  codec::Scratch scratch_;
  std::vector<float> aside_;  // What a message does not say, until it joins the residual.
  CompressionStatistics last_step_;
  CompressionStatistics this_step_;
};

}  // namespace stretto

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
  automatic,  // As long as it pays: now and then the time of steps is measured with and without,
              // and all ranks switch in the same step. Each decision is logged. During a warm-up
              // gradients travel as they are, since the cost of its messages says nothing about
              // later ones.
  never,
};

// Which rank adds up which messages. How a gradient travels depends on its codec and on the step,
// but not on its bucket.
enum class CompressedExchange : std::uint8_t {
  gather,  // Each of p ranks receives the messages of the p - 1 others and adds them up. If these
           // are in a step as many bytes as an all_reduce of the uncompressed gradients, the step
           // divides. Messages without a fixed length combine after a step in which they were as
           // many.
  divide,  // Each rank receives the others' messages for one part of each gradient, adds them up,
           // and sends all ranks a message of the sum by the same codec; the rest of the sum joins
           // its residual. Limits of f16() and of clip hold for a rank's values, not for sums. A
           // rank receives less than two messages, headers aside, for any number of ranks: of
           // top_k(0.01) all ranks get 1 % of the sums' elements. One operation more than `gather`,
           // for which the next bucket's start() waits. Messages without a fixed length combine.
  combine,  // As `divide`, but the whole sum is sent, by nonzeros(), so nothing is chosen twice. A
            // rank receives one message and the sums, which are no longer than the gradients. Two
            // operations more than `gather`, or three if messages have no fixed length; each is
            // submitted in start() of a later bucket, when the one before has ended.
  automatic,  // attach() chooses what the model of the links predicts to be the fastest; for
              // messages without a fixed length, from how many bytes on they combine. As `gather`
              // if there is no model, as between processes of one host.
};

// The predictions behind CompressedExchange::automatic. They do not include the time of codecs.
struct ExchangePrediction {
  // One rank's messages of a step, without messages that have no fixed length.
  std::size_t message_bytes = 0;
  // Time that the model of the links predicts for these messages; NaN: no prediction.
  double gathered_seconds = std::numeric_limits<double>::quiet_NaN();
  double divided_seconds = std::numeric_limits<double>::quiet_NaN();
  // Assumes that ranks choose their elements independently.
  double combined_seconds = std::numeric_limits<double>::quiet_NaN();
  // Messages without a fixed length combine in a step if, in the step before, those of all ranks
  // together had at least so many bytes. None: they never combine.
  std::optional<std::uint64_t> combines_from = std::nullopt;

  bool is_known() const { return gathered_seconds > 0 && divided_seconds > 0; }
};

// The codec for some gradients.
struct CompressionRule {
  std::string pattern;  // For the name of a gradient; * stands for any letters.
  std::shared_ptr<const Compressor> codec;
  bool operator==(const CompressionRule&) const = default;
};

// Must be equal on all ranks.
struct CompressionOptions {
  std::shared_ptr<const Compressor> codec = top_k();
  // Codecs for gradients whose names fit; the first rule that fits counts.
  std::vector<CompressionRule> rules = {};
  // Gradients with fewer elements travel as they are, unless a rule names them.
  static constexpr std::size_t kMinElements = 1024;
  std::size_t min_elements = kMinElements;
  // The first so many steps are not compressed.
  std::uint64_t dense_steps = 0;
  // Keep what a message leaves out, and add it to the next gradient. If false, it is lost.
  bool error_feedback = true;
  // Holds for all gradients of f32, also if they travel as they are or as factors: for these `stop`
  // checks the sum of all ranks, and names no rank. With `send`, infinity or NaN makes all of a
  // gradient that travels as factors NaN; so does a product of the factors that overflows. With
  // `zero`, infinities and NaN in a rank's gradient become zero before it is clipped and before
  // momentum and residual are added; those in the sum become zero, too. A product of factors that
  // overflows makes the gradient zero.
  NonFinite non_finite = NonFinite::send;
  // Momentum correction of Deep Gradient Compression (Lin et al., 2018), before compression: each
  // rank accumulates its gradients with this momentum, and sends the result. The optimizer must
  // then have no momentum of its own. For all gradients of f32; costs a vector for each.
  float momentum = 0;
  // Reset the momentum of elements that a sparse message has sent; not if nonzeros() sends all. The
  // paper does so; off, because it made learning worse where we tried it:
  // docs/measurements/convergence.md.
  bool mask_momentum = false;
  // A rank scales its gradient down if the norm is above clip_norm / sqrt(ranks). 0: no limit.
  float clip_norm = 0;
  CompressedExchange exchange = CompressedExchange::gather;  // For messages.
  Compression compression = Compression::always;
  // For random choices.
  std::uint64_t seed = 0;
  // Also measure the norms in CompressionStatistics; costs another pass over all elements.
  bool measure_norms = false;
  bool operator==(const CompressionOptions&) const = default;  // Compares codecs by address.
};

// Reduces gradients of f32 by messages of codecs, see CompressedExchange. Messages are decoded in
// the order of their ranks and added up in f32, so that all ranks have the same bits. What a
// message leaves out stays in a residual. A residual belongs to a gradient, by its name: it
// survives new buckets and new reducers, and is saved.
//
// Gradients whose codec is power_sgd() are reduced by two all_reduces for each bucket: of their
// left factors, and of their right ones. The difference between a rank's gradient and its part of
// the product stays in the residual. The next step begins with the right factors.
//
// Gradients without a codec, and all gradients of a step that is not compressed, are reduced by an
// all_reduce, residuals included. A step that is not compressed works as with PlainReduction:
// buckets finish early, and unused buckets are left out; for exceptions see finishes_early().
//
// Gathering pays while a message is shorter than about 2 / p of the gradients, for p ranks. Memory:
// a residual for each gradient that has a codec, factors, the messages of all ranks, and, for
// encoding, room for the numbers and indices that a codec looks at: at most as many as the longest
// gradient has elements. A step allocates nothing once messages have reached their length, except
// for messages that arrive before this rank asks for them, beyond 256 KiB from a rank.
//
// A codec whose messages have no fixed length (threshold()) costs one more small operation for each
// bucket. Its messages, like right factors, are sent when the next bucket is full: start() of that
// bucket waits for the operation before. start() also waits in the few steps in which
// Compression::automatic decides.
//
// start() throws InvalidArgument for operations other than sum and mean. In a step in which a rank
// has not computed a gradient (find_unused, frozen), it keeps the gradient's residual for later.
class CompressedReduction : public CommunicationHook {
 public:
  explicit CompressedReduction(CompressionOptions options = {});
  ~CompressedReduction() override;

  std::string name() const override;
  // Throws Mismatch on all ranks, naming both sides, if ranks have different codecs or settings.
  // Throws InvalidArgument on all ranks if a state loaded on some rank is of another number of
  // ranks, another rank or another model, or does not fit a gradient; and if two gradients of f32
  // have the same name. Residual and momentum of a gradient whose length has changed start anew.
  // Logs a warning if a rule fits no gradient, if no gradient is of f32, or if a loaded state has
  // residuals of unknown gradients.
  void attach(Communicator& communicator, std::span<const GradientDescription> gradients) override;
  Work start(Communicator& communicator, const FullBucket& bucket) override;
  // Throws the failure of decoding. Unless all ranks find the same failure, it has then aborted the
  // communicator.
  void finish(const FullBucket& bucket) override;
  void forget(std::span<const std::size_t> gradients) override;
  // True in a step that is not compressed, except in `dense_steps` of Compression::always and in
  // uncounted steps of a trial. False after a step of a trial: the next one may be compressed.
  bool finishes_early() const override { return finishes_early_; }

  // Saves this rank's step number, and all its residuals and momenta, bit for bit.
  std::vector<std::byte> save() const override;
  // Throws InvalidArgument for damaged bytes, and for a state that attach() refuses: here if the
  // hook is attached already, else in attach().
  void load(std::span<const std::byte> state) override;
  // Converts what save() returned on ranks 0, 1, 2, ... for another number of ranks, so that what
  // has not been sent yet has the same effect on the next step. The first rank gets the sums of all
  // residuals, added in this order, and the others zeros; each gets an equal share of the momenta.
  // For `op` mean, which divides by the number of ranks, both are multiplied by the new number /
  // the old. Throws InvalidArgument if `states` are not such states, or `ranks` is 0.
  static std::vector<std::vector<std::byte>> redistribute(
      std::span<const std::vector<std::byte>> states, std::size_t ranks,
      ReduceOp op = ReduceOp::mean);

  const CompressionStatistics& last_step() const { return last_step_; }
  const CompressionStatistics* last_compression() const override { return &last_step_; }
  // Which exchange attach() has chosen, and why: "divided: the model of the links predicts ...".
  const std::string& exchange_reason() const { return exchange_reason_; }
  // Set by attach(), the same on all ranks. Without times if the model of the links was not asked.
  const ExchangePrediction& exchange_prediction() const { return prediction_; }
  // The residual of the gradient of this name; empty if there is none.
  std::span<const float> residual(const std::string& name) const;

 protected:
  // For a bucket whose finish() will not be called: ends what start() has begun beside its Work, as
  // the destructor of a Work does: at once if an exception unwinds the stack.
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
  // Totals over all gradients whose messages have a fixed length, except the last two members.
  struct Bytes {
    std::size_t of_messages = 0;  // One rank's messages.
    std::size_t of_parts = 0;     // The same if messages are divided.
    std::size_t of_gradients = 0;
    std::size_t of_sums = 0;  // As far as it is predictable.
    std::size_t without_fixed_length = 0;
    bool has_factors = false;  // Whether some gradient has factors.
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
  std::vector<Exchange*> pending_;  // Those with an operation that is yet to be submitted.
  std::unique_ptr<Trial> trial_;
  Communicator* communicator_ = nullptr;
  int rank_ = 0;
  int ranks_ = 0;
  std::unique_ptr<reducer::SavedState> loaded_;  // Until attach().
  std::uint32_t context_hash_ = 0;               // Hash of name().
  std::uint64_t step_ = 0;
  std::optional<std::uint64_t> bucket_step_;  // FullBucket::step of the current step.
  std::uint64_t warm_up_steps_ = 0;
  bool compresses_ = true;                                // In this step.
  CompressionReason reason_ = CompressionReason::always;  // For `compresses_`.
  std::atomic<bool> finishes_early_ = false;              // Read by threads that make gradients.
  bool divides_ = false;
  bool divides_step_ = false;   // In this step.
  bool combines_step_ = false;  // In this step: messages without a fixed length.
  float announced_ = 0;  // All ranks' bytes of such messages, last step; agreed on by attach().
  std::uint64_t announcing_ = 0;  // The same, in this step so far.
  std::string exchange_reason_;
  ExchangePrediction prediction_;
  codec::Scratch scratch_;
  std::vector<float> aside_;  // The rest of a vector, until it joins the residual.
  CompressionStatistics last_step_;
  CompressionStatistics this_step_;
};

}  // namespace stretto

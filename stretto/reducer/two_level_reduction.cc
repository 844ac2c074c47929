// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/two_level_reduction.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/content_hash.h"
#include "stretto/base/error.h"
#include "stretto/base/refuse.h"
#include "stretto/base/round_up.h"
#include "stretto/codec/arithmetic.h"
#include "stretto/reducer/agreement.h"
#include "stretto/reducer/compressed_exchange.h"
#include "stretto/reducer/saved_state.h"

namespace stretto {
namespace {

bool is_added_up(const FullBucket& bucket) {
  return bucket.view.dtype == DType::f32 &&
         (bucket.op == ReduceOp::sum || bucket.op == ReduceOp::mean);
}

constexpr std::uint32_t kRefused = UINT32_MAX;  // Instead of a step's number.
constexpr std::size_t kAlignment = kCacheLineBytes / sizeof(float);

// A part of a matrix has whole rows, so that factors can approximate it. A short gradient is one
// part; which one depends on its name only, by which its state is found.
AddedPart part_of(const GradientDescription& gradient, std::size_t part, std::size_t parts) {
  const std::uint64_t hash = content_hash(std::as_bytes(std::span(gradient.name)));
  AddedPart found = part_added_by(part, gradient.count, hash % parts, parts);
  const bool has_rows = gradient.rows >= parts && are_worth_parts(gradient.count, parts);
  if (!has_rows) return found;
  const std::size_t columns = gradient.count / gradient.rows;
  const std::size_t end = found.first + found.count;
  found.first -= found.first % columns;
  found.count = end - end % columns - found.first;
  return found;
}

GradientDescription part_described(const GradientDescription& gradient, std::size_t part,
                                   std::size_t parts) {
  GradientDescription described = gradient;
  const AddedPart found = part_of(gradient, part, parts);
  described.first = found.first;
  described.count = found.count;
  const std::size_t columns = gradient.rows > 0 ? gradient.count / gradient.rows : 0;
  const bool has_rows = columns > 0 && found.count % columns == 0;
  described.rows = has_rows ? found.count / columns : 0;
  return described;
}

std::unique_ptr<Communicator> part_of_ranks(Communicator& communicator, std::optional<int> color,
                                            const char* name) {
  return communicator.split({.color = color, .name = name, .is_for_host_memory = true});
}

}  // namespace

// A copy of a bucket: first the parts of the host's first rank, each on cache lines of its own,
// then those of the second rank, and so on. After the parts of each rank there is a word for each
// gradient: how many ranks of the host contribute to it. When parts are handed out, the bits of the
// first word are the step, or kRefused if the other hook refuses them.
struct TwoLevelReduction::Bucket {
  struct Part {
    std::size_t gradient = 0;  // Index in the bucket.
    AddedPart of_gradient;
    View where;

    View in_gradient(const FullBucket& full) const {
      return full.gradient_views[gradient].slice(of_gradient.first, of_gradient.count);
    }
  };

  bool is_of(std::span<const std::size_t> others) const;
  std::size_t room_of_words() const;
  std::span<float> words(std::size_t part) const;
  std::uint32_t outcome(std::size_t part) const {
    return std::bit_cast<std::uint32_t>(words(part)[0]);
  }

  FullBucket own;  // This rank's parts, as the other hook gets them.
  std::vector<std::size_t> gradients;
  std::vector<View> own_views;
  std::vector<std::uint8_t> silent;
  std::vector<std::uint8_t> uncomputed;
  std::vector<Part> parts;
  Memory memory;
  View all;
  View share;  // This rank's part of `all`.
  std::size_t share_count = 0;
  ReduceScatterOptions sum;
  AllGatherOptions gather;
  Status refusal;  // By the other hook.
  Work on_host;
  Work between;
};

TwoLevelReduction::TwoLevelReduction(std::shared_ptr<CommunicationHook> inner)
    : inner_(std::move(inner)) {
  if (inner_ == nullptr) refuse("the hook that a TwoLevelReduction hands buckets to is null");
}

TwoLevelReduction::~TwoLevelReduction() = default;

std::string TwoLevelReduction::name() const {
  return fmt::format("on each host, then {}", inner_->name());
}

// Finds this rank's part, and makes the groups of ranks.
void TwoLevelReduction::find_place(Communicator& communicator) {
  const std::vector<std::int32_t> hosts = communicator.hosts();
  const auto self = static_cast<std::size_t>(communicator.rank());
  std::vector<std::uint32_t> sizes(static_cast<std::size_t>(std::ranges::max(hosts)) + 1, 0);
  std::uint32_t before = 0;  // Lower ranks of this host.
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (rank < self && hosts[rank] == hosts[self]) ++before;
    ++sizes[static_cast<std::size_t>(hosts[rank])];
  }
  on_host_.reset();
  between_.reset();
  place_ = {};
  if (sizes.size() == 1 || std::ranges::max(sizes) == 1) return;
  place_ = {.parts = std::ranges::min(sizes), .own = before};
  factor_ = static_cast<double>(sizes.size()) / communicator.size();
  const auto own = has_part() ? std::optional(static_cast<int>(place_.own)) : std::nullopt;
  on_host_ = part_of_ranks(communicator, hosts[self], "gradients on a host");
  between_ = part_of_ranks(communicator, own, "gradients between hosts");
}

// Empty if this rank has all of each gradient.
std::string TwoLevelReduction::place_text() const {
  if (is_flat()) return {};
  if (!has_part()) return "none of each gradient";
  return fmt::format("part {} of {} of each gradient, of host {} of {}", place_.own + 1,
                     place_.parts, between_->rank().value() + 1, between_->size());
}

// If this rank had another part, the state of gradients is for other elements and is dropped. The
// step is kept, because ranks with the same part go on in the same step.
void TwoLevelReduction::take_over(std::span<const std::byte> bytes) {
  others_step_ = 0;  // The other hook has the loaded step.
  inner_->load(reducer::state_at(place_text(), bytes));
}

// After an exception, tells the ranks that wait for this one: only this hook knows the two groups.
template <class Body>
void TwoLevelReduction::telling_others(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    if (on_host_ != nullptr) on_host_->abort(error.what());
    if (between_ != nullptr) between_->abort(error.what());
    throw;
  }
}

void TwoLevelReduction::attach_parts() {
  if (!has_part()) return;
  std::vector<GradientDescription> parts;
  for (const GradientDescription& gradient : gradients_) {
    parts.push_back(part_described(gradient, place_.own, place_.parts));
  }
  telling_others([&] { inner_->attach(*between_, parts); });
}

// If one rank fails, all do, and make new groups the next time. Each stage must have succeeded on
// all ranks before the next: all have such a hook before groups are made; all have taken over their
// loaded state before the other hook sends messages.
void TwoLevelReduction::attach(Communicator& communicator,
                               std::span<const GradientDescription> gradients) {
  const auto together = [&](const auto& body) {
    const auto take_over = [&] { return body(), reducer::ResumePoint(); };
    (void)reducer::take_over_together(communicator, name(), take_over, timeout());
  };
  reducer::check_same_hook(communicator, name(), timeout());
  gradients_.assign(gradients.begin(), gradients.end());
  forget_step();
  buckets_.clear();
  const bool has_place = std::exchange(attached_to_, 0) == communicator.serial();
  if (!has_place) find_place(communicator);
  together([&] {
    if (loaded_) take_over(*loaded_);
  });
  if (is_flat()) inner_->attach(communicator, gradients_);
  if (!is_flat()) together([&] { attach_parts(); });
  attached_to_ = communicator.serial();
  loaded_.reset();
}

// False if buckets have been formed anew since.
bool TwoLevelReduction::Bucket::is_of(std::span<const std::size_t> others) const {
  return all.count > 0 && std::ranges::equal(gradients, others);
}

std::size_t TwoLevelReduction::Bucket::room_of_words() const {
  return round_up(gradients.size(), kAlignment);
}

std::span<float> TwoLevelReduction::Bucket::words(std::size_t part) const {
  return floats(all.slice((part + 1) * share_count - room_of_words(), gradients.size()));
}

void TwoLevelReduction::lay_out(Communicator& communicator, const FullBucket& full,
                                Bucket& bucket) const {
  bucket = {};
  bucket.gradients.assign(full.gradients.begin(), full.gradients.end());
  std::vector<std::size_t> places;  // For each part: its offset in the share of its rank.
  std::size_t longest = 0;
  for (std::size_t part = 0; part < place_.parts; ++part) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
      const auto of_gradient = part_of(gradients_[bucket.gradients[i]], part, place_.parts);
      bucket.parts.push_back({.gradient = i, .of_gradient = of_gradient, .where = {}});
      places.push_back(at);
      at += round_up(of_gradient.count, kAlignment);
    }
    longest = std::max(longest, at);
  }
  bucket.share_count = longest + bucket.room_of_words();
  const std::size_t count = bucket.share_count * place_.parts;
  bucket.memory = full.memory->allocate(communicator, count * sizeof(float));
  bucket.all = View(bucket.memory.bytes().data(), count, DType::f32);
  for (std::size_t p = 0; p < bucket.parts.size(); ++p) {
    const std::size_t rank = p / bucket.gradients.size();
    Bucket::Part& part = bucket.parts[p];
    part.where = bucket.all.slice(rank * bucket.share_count + places[p], part.of_gradient.count);
    if (rank == place_.own) bucket.own_views.push_back(part.where);
  }
  std::vector<std::size_t> counts(static_cast<std::size_t>(on_host_->size()), 0);
  std::fill_n(counts.begin(), place_.parts, bucket.share_count);
  bucket.sum.counts = counts;
  bucket.gather.counts = std::move(counts);
  bucket.share = View(nullptr, 0, DType::f32);
  if (!has_part()) return;
  bucket.share = bucket.all.slice(place_.own * bucket.share_count, bucket.share_count);
}

void TwoLevelReduction::add_up_on_host(Communicator& communicator, const FullBucket& full,
                                       Bucket& bucket) const {
  if (!bucket.is_of(full.gradients)) lay_out(communicator, full, bucket);
  for (const Bucket::Part& part : bucket.parts) {
    std::ranges::copy(floats(part.in_gradient(full)), floats(part.where).begin());
  }
  for (std::size_t part = 0; part < place_.parts; ++part) {
    const std::span<float> words = bucket.words(part);
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = full.is_silent(i) ? 0.0f : 1.0f;
  }
  bucket.own = full;
  bucket.refusal = {};
  bucket.uncomputed.assign(full.uncomputed.begin(), full.uncomputed.end());
  bucket.sum.timeout = full.timeout;
  bucket.gather.timeout = full.timeout;
  bucket.on_host = on_host_->reduce_scatter(bucket.all, bucket.share, bucket.sum);
}

Work TwoLevelReduction::start(Communicator& communicator, const FullBucket& full) {
  if (is_flat()) return inner_->start(communicator, full);
  Work work;
  telling_others([&] { work = start_levels(communicator, full); });
  return work;
}

Work TwoLevelReduction::start_levels(Communicator& communicator, const FullBucket& full) {
  if (!begun_.empty() && begun_.front()->own.step != full.step) forget_step();  // It failed.
  const auto is_converted = [&](std::size_t index) {
    return (gradients_[index].dtype == DType::f32) != (full.view.dtype == DType::f32);
  };
  if (std::ranges::any_of(full.gradients, is_converted)) {
    reducer::refuse_converted(name(), full.view.dtype);
  }
  Work work;
  if (is_added_up(full)) {
    while (buckets_.size() <= full.index) buckets_.push_back(std::make_unique<Bucket>());
    Bucket& bucket = *buckets_[full.index];
    add_up_on_host(communicator, full, bucket);
    begun_.push_back(&bucket);
  } else {
    work = communicator.all_reduce(full.view, {.op = full.op, .timeout = full.timeout});
  }
  // The latest bucket waits until it is known whether it is the last one for the other hook.
  while (handed_over_ + 1 < begun_.size()) reduce_between_hosts(false);
  if (!full.is_last()) return work;
  if (handed_over_ < begun_.size()) reduce_between_hosts(true);
  hand_out();
  return work;
}

void TwoLevelReduction::forget_step() {
  begun_.clear();
  handed_over_ = 0;
}

// Takes the next bucket that has begun.
void TwoLevelReduction::reduce_between_hosts(bool is_last) {
  Bucket& bucket = *begun_[handed_over_];
  FullBucket& own = bucket.own;
  own.index = handed_over_++;
  own.of_count = own.index + (is_last ? 1 : 2);
  bucket.on_host.wait();
  if (!has_part()) return;
  const std::span<const float> words = bucket.words(place_.own);
  const std::size_t count = bucket.share_count - bucket.room_of_words();
  own.view = bucket.share.slice(0, count);
  if (own.op == ReduceOp::mean) codec::multiply(own.view, factor_);
  bucket.silent.resize(words.size());
  std::ranges::transform(words, bucket.silent.begin(),
                         [](float ranks) { return static_cast<std::uint8_t>(ranks == 0); });
  own.gradients = bucket.gradients;
  own.gradient_views = bucket.own_views;
  own.silent = bucket.silent;
  own.uncomputed = bucket.uncomputed;
  bucket.between = inner_->start(*between_, own);
}

// For all buckets of the step, after the last one: earlier, the ranks of a host would have to know
// which results the others have. What the other hook refuses, it refuses on all hosts; the ranks of
// this host learn it with the results, so that all end the step alike.
void TwoLevelReduction::hand_out() {
  for (Bucket* const bucket : begun_) {
    if (has_part()) {
      bucket->between.wait();
      try {
        inner_->finish(bucket->own);
      } catch (const InvalidArgument& refusal) {
        bucket->refusal = refusal.status().with_context("added up on each host");
      }
      const CompressionStatistics* const step = inner_->last_compression();
      const std::uint64_t outcome = !bucket->refusal.ok() ? kRefused
                                    : step == nullptr     ? 0
                                                          : step->step;
      bucket->words(place_.own)[0] = std::bit_cast<float>(static_cast<std::uint32_t>(outcome));
    }
    bucket->on_host = on_host_->all_gather(bucket->share, bucket->all, bucket->gather);
  }
  forget_step();
}

void TwoLevelReduction::finish(const FullBucket& full) {
  if (is_flat()) return inner_->finish(full);
  if (!is_added_up(full)) return;
  Bucket& bucket = *buckets_[full.index];
  telling_others([&] { bucket.on_host.wait(); });
  bucket.refusal.or_throw();
  for (std::uint32_t part = 0; part < place_.parts; ++part) {
    if (bucket.outcome(part) != kRefused) continue;
    refuse("bucket {} of {}: another rank of this host, which has part {} of {}, says why",
           full.index, full.of_count, part + 1, place_.parts);
  }
  others_step_ = bucket.outcome(0);
  for (const Bucket::Part& part : bucket.parts) {
    std::ranges::copy(floats(part.where), floats(part.in_gradient(full)).begin());
  }
}

void TwoLevelReduction::forget(std::span<const std::size_t> gradients) {
  if (has_part()) inner_->forget(gradients);
}

std::vector<std::byte> TwoLevelReduction::save() const {
  if (loaded_) return *loaded_;
  std::vector<std::byte> state = inner_->save();
  if (is_flat() || state.empty()) return state;
  // Without a part, the other hook has counted no steps; the rank may have a part after load().
  if (!has_part() && others_step_ > 0) {
    state = reducer::print({.step = others_step_});
  }
  return reducer::print_at(place_text(), std::move(state));
}

void TwoLevelReduction::load(std::span<const std::byte> state) {
  if (attached_to_ != 0) return take_over(state);
  loaded_.emplace(state.begin(), state.end());
}

}  // namespace stretto

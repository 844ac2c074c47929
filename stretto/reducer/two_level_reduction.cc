// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/two_level_reduction.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/content_hash.h"
#include "stretto/base/error.h"
#include "stretto/base/log.h"
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

constexpr const char* kAll = "all of each gradient";
constexpr std::size_t kAlignment = kCacheLineBytes / sizeof(float);

// Whole rows of a matrix, so that factors can stand for it. A short gradient is in one piece, whose
// place depends on its name only, since what is kept of it is found by that.
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

// What the other hook finds wrong names ranks among those that have the same part. What fails in
// communication names those of the job.
template <class Body>
void in_terms_of_hosts(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    const StatusCode code = error.status().code();
    if (code != StatusCode::invalid_argument && code != StatusCode::protocol) throw;
    Status(code, fmt::format("between hosts, counted as ranks: {}", error.status().message()))
        .or_throw();
  }
}

std::unique_ptr<Communicator> part_of_ranks(Communicator& communicator, std::optional<int> color,
                                            const char* name) {
  return communicator.split({.color = color, .name = name, .is_for_host_memory = true});
}

}  // namespace

// A copy of a bucket: parts of its gradients, each on cache lines of its own; first all those of
// the host's first rank, then of the second one, and so on. Behind the parts of each rank stands
// for each gradient how many ranks of the host have something to say of it.
struct TwoLevelReduction::Bucket {
  struct Part {
    std::size_t gradient = 0;  // Of the bucket.
    AddedPart of_gradient;
    std::size_t at = 0;  // Among those of its rank.
    View where;
  };

  bool is_of(std::span<const std::size_t> others) const;
  std::size_t room_of_speakers() const;
  std::span<float> speakers(std::size_t part) const;

  FullBucket own;  // What the other hook sees: this rank's parts.
  std::vector<std::size_t> gradients;
  std::vector<View> own_views;
  std::vector<std::uint8_t> silent;
  std::vector<std::uint8_t> uncomputed;
  std::vector<Part> parts;
  Memory memory;
  View all;
  View share;  // What of that is this rank's.
  std::size_t share_count = 0;
  ReduceScatterOptions sum;
  AllGatherOptions gather;
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

// Which part this rank has, and with whom.
void TwoLevelReduction::find_place(Communicator& communicator) {
  if (attached_to_ == communicator.serial()) return;
  attached_to_ = 0;
  on_host_.reset();
  between_.reset();
  place_ = {};
  const std::vector<std::int32_t> hosts = communicator.hosts();
  const auto self = static_cast<std::size_t>(communicator.rank());
  std::vector<std::uint32_t> sizes(static_cast<std::size_t>(std::ranges::max(hosts)) + 1, 0);
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    std::uint32_t& size = sizes[static_cast<std::size_t>(hosts[rank])];
    if (rank == self) place_.own = size;
    ++size;
  }
  if (sizes.size() > 1 && std::ranges::max(sizes) > 1) {
    place_.parts = std::ranges::min(sizes);
    factor_ = static_cast<double>(sizes.size()) / communicator.size();
    const auto own = has_part() ? std::optional(static_cast<int>(place_.own)) : std::nullopt;
    on_host_ = part_of_ranks(communicator, hosts[self], "gradients on a host");
    between_ = part_of_ranks(communicator, own, "gradients between hosts");
  } else {
    place_ = {};
  }
  attached_to_ = communicator.serial();
}

std::string TwoLevelReduction::place_text() const {
  if (is_flat()) return kAll;
  if (!has_part()) return "no part of gradients";
  return fmt::format("part {} of {} of each gradient", place_.own + 1, place_.parts);
}

// State of the other hook is of other elements where this rank has another part than when it was
// saved.
void TwoLevelReduction::take_over(std::span<const std::byte> state) {
  std::string place = kAll;
  reducer::SavedStates of_part;
  if (reducer::are_states(state)) of_part = reducer::parse_states(state);
  if (of_part.size() == 1) {
    place = of_part.begin()->first;
    state = of_part.begin()->second;
  }
  if (state.empty() || place == place_text()) return inner_->load(state);
  log(LogLevel::warning,
      "what had not been sent of gradients when the hook's state was saved is lost: the state is "
      "of "
      "{}, and this rank has {} now, because other ranks share hosts",
      place, place_text());
}

// Those that wait for this rank are told: which they are, only this hook knows.
void TwoLevelReduction::tell_others(const std::exception& failure) {
  if (on_host_ != nullptr) on_host_->abort(failure.what());
  if (between_ != nullptr) between_->abort(failure.what());
}

void TwoLevelReduction::attach_inner(Communicator& communicator) {
  if (is_flat()) return inner_->attach(communicator, gradients_);
  if (!has_part()) return;
  std::vector<GradientDescription> parts;
  for (const GradientDescription& gradient : gradients_) {
    parts.push_back(part_described(gradient, place_.own, place_.parts));
  }
  try {
    inner_->attach(*between_, parts);
  } catch (const std::exception& error) {
    between_->abort(error.what());  // They wait for this rank there.
    throw;
  }
}

void TwoLevelReduction::attach(Communicator& communicator,
                               std::span<const GradientDescription> gradients) {
  gradients_.assign(gradients.begin(), gradients.end());
  forget_step();
  buckets_.clear();
  // What one rank refuses, all do: those of other parts know nothing of it.
  const auto together = [&](const auto& body) {
    const auto take_over = [&] { return body(), reducer::ResumePoint(); };
    (void)reducer::take_over_together(communicator, name(), take_over, timeout());
  };
  together([&] {});
  find_place(communicator);
  together([&] {
    if (loaded_) take_over(*loaded_);
  });
  loaded_.reset();
  together([&] { attach_inner(communicator); });
}

// Buckets are formed anew now and then.
bool TwoLevelReduction::Bucket::is_of(std::span<const std::size_t> others) const {
  return all.count > 0 && std::ranges::equal(gradients, others);
}

std::size_t TwoLevelReduction::Bucket::room_of_speakers() const {
  return round_up(gradients.size(), kAlignment);
}

std::span<float> TwoLevelReduction::Bucket::speakers(std::size_t part) const {
  return floats(all.slice((part + 1) * share_count - room_of_speakers(), gradients.size()));
}

void TwoLevelReduction::lay_out(Communicator& communicator, const FullBucket& full,
                                Bucket& bucket) const {
  bucket = {};
  bucket.gradients.assign(full.gradients.begin(), full.gradients.end());
  std::size_t longest = 0;
  for (std::size_t part = 0; part < place_.parts; ++part) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
      const auto of_gradient = part_of(gradients_[bucket.gradients[i]], part, place_.parts);
      bucket.parts.push_back({.gradient = i, .of_gradient = of_gradient, .at = at, .where = {}});
      at += round_up(of_gradient.count, kAlignment);
    }
    longest = std::max(longest, at);
  }
  bucket.share_count = longest + bucket.room_of_speakers();
  const std::size_t count = bucket.share_count * place_.parts;
  bucket.memory = full.memory->allocate(communicator, count * sizeof(float));
  bucket.all = View(bucket.memory.bytes().data(), count, DType::f32);
  for (std::size_t p = 0; p < bucket.parts.size(); ++p) {
    const std::size_t rank = p / bucket.gradients.size();
    Bucket::Part& part = bucket.parts[p];
    part.where = bucket.all.slice(rank * bucket.share_count + part.at, part.of_gradient.count);
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
    const View gradient = full.gradient_views[part.gradient];
    const View from = gradient.slice(part.of_gradient.first, part.of_gradient.count);
    std::ranges::copy(floats(from), floats(part.where).begin());
  }
  for (std::size_t part = 0; part < place_.parts; ++part) {
    const std::span<float> speakers = bucket.speakers(part);
    for (std::size_t i = 0; i < speakers.size(); ++i) speakers[i] = full.is_silent(i) ? 0.0f : 1.0f;
  }
  bucket.own = full;
  bucket.uncomputed.assign(full.uncomputed.begin(), full.uncomputed.end());
  bucket.sum.timeout = full.timeout;
  bucket.gather.timeout = full.timeout;
  bucket.on_host = on_host_->reduce_scatter(bucket.all, bucket.share, bucket.sum);
}

Work TwoLevelReduction::start(Communicator& communicator, const FullBucket& full) {
  if (is_flat()) return inner_->start(communicator, full);
  try {
    return start_levels(communicator, full);
  } catch (const std::exception& error) {
    tell_others(error);
    throw;
  }
}

Work TwoLevelReduction::start_levels(Communicator& communicator, const FullBucket& full) {
  if (!begun_.empty() && begun_.front()->own.step != full.step) forget_step();  // It has failed.
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
  // Not the latest one before it is known whether it is the last that the other hook sees.
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

// Of the next bucket that has begun.
void TwoLevelReduction::reduce_between_hosts(bool is_last) {
  Bucket& bucket = *begun_[handed_over_];
  FullBucket& own = bucket.own;
  own.index = handed_over_++;
  own.of_count = own.index + (is_last ? 1 : 2);
  bucket.on_host.wait();
  if (!has_part()) return;
  const std::span<const float> speakers = bucket.speakers(place_.own);
  const std::size_t count = bucket.share_count - bucket.room_of_speakers();
  own.view = bucket.share.slice(0, count);
  if (own.op == ReduceOp::mean) codec::multiply(own.view, factor_);
  bucket.silent.resize(speakers.size());
  std::ranges::transform(speakers, bucket.silent.begin(),
                         [](float ranks) { return static_cast<std::uint8_t>(ranks == 0); });
  own.gradients = bucket.gradients;
  own.gradient_views = bucket.own_views;
  own.silent = bucket.silent;
  own.uncomputed = bucket.uncomputed;
  in_terms_of_hosts([&] { bucket.between = inner_->start(*between_, own); });
}

// Of all buckets of the step, behind the last one: before, ranks of a host would have to know of
// each other which results have come.
void TwoLevelReduction::hand_out() {
  for (Bucket* const bucket : begun_) {
    if (has_part()) {
      in_terms_of_hosts([&] {
        bucket->between.wait();
        inner_->finish(bucket->own);
      });
    }
    bucket->on_host = on_host_->all_gather(bucket->share, bucket->all, bucket->gather);
  }
  forget_step();
}

void TwoLevelReduction::finish(const FullBucket& full) {
  if (is_flat()) return inner_->finish(full);
  if (!is_added_up(full)) return;
  Bucket& bucket = *buckets_[full.index];
  try {
    bucket.on_host.wait();
  } catch (const std::exception& error) {
    tell_others(error);
    throw;
  }
  for (const Bucket::Part& part : bucket.parts) {
    const View gradient = full.gradient_views[part.gradient];
    const View to = gradient.slice(part.of_gradient.first, part.of_gradient.count);
    std::ranges::copy(floats(part.where), floats(to).begin());
  }
}

void TwoLevelReduction::forget(std::span<const std::size_t> gradients) {
  if (is_flat() || has_part()) inner_->forget(gradients);
}

std::vector<std::byte> TwoLevelReduction::save() const {
  if (loaded_) return *loaded_;
  std::vector<std::byte> state = inner_->save();
  if (is_flat() || state.empty()) return state;
  return reducer::print(reducer::SavedStates{{place_text(), std::move(state)}});
}

void TwoLevelReduction::load(std::span<const std::byte> state) {
  if (attached_to_ != 0) return take_over(state);
  loaded_.emplace(state.begin(), state.end());
}

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/communication_hook.h"

#include <fmt/format.h>

#include "stretto/base/refuse.h"

namespace stretto {

void CommunicationHook::claim(const std::shared_ptr<const void>& owner,
                              std::optional<Duration> timeout) {
  if (inner() != nullptr) inner()->claim(owner, timeout);
  if (is_shareable()) return;
  const MutexLock lock(owner_mutex_);
  const auto living = owner_.lock();
  if (living != nullptr && living != owner) {
    refuse(
        "the communication hook '{}' reduces the gradients of another model, and remembers things "
        "of them: give each model a hook of its own (copies of options share one), or destroy "
        "that model's DistributedDataParallel or Reducer first",
        name());
  }
  owner_ = owner;
  timeout_ = timeout;
}

void CommunicationHook::load(std::span<const std::byte> state) {
  if (inner() != nullptr) return inner()->load(state);
  if (state.empty()) return;
  refuse("the hook '{}' keeps nothing; {} bytes of state are of another", name(), state.size());
}

Work PlainReduction::start(Communicator& communicator, const FullBucket& bucket) {
  return communicator.all_reduce(bucket.view, {.op = bucket.op, .timeout = bucket.timeout});
}

template <class Number>
std::string HalvedReduction<Number>::name() const {
  return fmt::format("{}, then {}", stretto::name(dtype_of<Number>), inner_->name());
}

// The bucket that the other hook gets instead of a bucket of f32.
template <class Number>
FullBucket HalvedReduction<Number>::halved(const FullBucket& bucket) const {
  const Halved& state = buckets_[bucket.index];
  FullBucket result = bucket;
  result.view = state.view;
  result.gradient_views = state.gradient_views;
  return result;
}

template <class Number>
Work HalvedReduction<Number>::start(Communicator& communicator, const FullBucket& bucket) {
  if (bucket.view.dtype != DType::f32) return inner_->start(communicator, bucket);
  if (buckets_.size() <= bucket.index) buckets_.resize(bucket.index + 1);
  Halved& state = buckets_[bucket.index];
  if (state.view.count != bucket.view.count) {
    const std::size_t bytes = bucket.view.count * sizeof(Number);
    state.numbers = bucket.memory->allocate(communicator, bytes);
    state.view = View(state.numbers.bytes().data(), bucket.view.count, dtype_of<Number>);
  }
  state.gradient_views.clear();
  for (const View& view : bucket.gradient_views) {
    const auto first = static_cast<std::size_t>(view.data - bucket.view.data) / sizeof(float);
    state.gradient_views.push_back(state.view.slice(first, view.count));
  }
  bucket.memory->convert(state.view, bucket.view);
  bucket.memory->publish();
  return inner_->start(communicator, halved(bucket));
}

template <class Number>
void HalvedReduction<Number>::finish(const FullBucket& bucket) {
  if (bucket.view.dtype != DType::f32) return inner_->finish(bucket);
  inner_->finish(halved(bucket));
  bucket.memory->convert(bucket.view, buckets_[bucket.index].view);
}

template class HalvedReduction<Half>;
template class HalvedReduction<BFloat16>;

}  // namespace stretto

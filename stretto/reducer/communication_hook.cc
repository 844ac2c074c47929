// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/communication_hook.h"

#include <fmt/format.h>

#include "stretto/base/refuse.h"
#include "stretto/codec/arithmetic.h"

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

// What the other hook sees of a bucket of f32.
template <class Number>
FullBucket HalvedReduction<Number>::halved(const FullBucket& bucket) const {
  const Halved& state = buckets_[bucket.index];
  FullBucket result = bucket;
  result.view = view_of(state.numbers.span());
  result.gradient_views = state.gradient_views;
  return result;
}

template <class Number>
Work HalvedReduction<Number>::start(Communicator& communicator, const FullBucket& bucket) {
  if (bucket.view.dtype != DType::f32) return inner_->start(communicator, bucket);
  if (buckets_.size() <= bucket.index) buckets_.resize(bucket.index + 1);
  Halved& state = buckets_[bucket.index];
  if (state.numbers.size() != bucket.view.count) {
    state.numbers = communicator.allocate<Number>(bucket.view.count);
  }
  state.gradient_views.clear();
  for (const View& view : bucket.gradient_views) {
    const auto first = static_cast<std::size_t>(view.data - bucket.view.data) / sizeof(float);
    state.gradient_views.push_back(view_of(state.numbers.span().subspan(first, view.count)));
  }
  const auto* const from = reinterpret_cast<const float*>(bucket.view.data);
  codec::narrow(std::span(from, bucket.view.count), state.numbers.span());
  return inner_->start(communicator, halved(bucket));
}

template <class Number>
void HalvedReduction<Number>::finish(const FullBucket& bucket) {
  if (bucket.view.dtype != DType::f32) return inner_->finish(bucket);
  inner_->finish(halved(bucket));
  const Halved& state = buckets_[bucket.index];
  auto* const to = reinterpret_cast<float*>(bucket.view.data);
  codec::widen(std::span<const Number>(state.numbers.span()), std::span(to, bucket.view.count));
}

template class HalvedReduction<Half>;
template class HalvedReduction<BFloat16>;

}  // namespace stretto

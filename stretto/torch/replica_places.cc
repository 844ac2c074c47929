// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How a replica's gradients get to their places in buckets, and how other tensors that were lent
// these places keep their contents.

#include <cstring>
#include <unordered_set>
#include <utility>

#include "stretto/torch/replica.h"

namespace stretto::ddp {
namespace {

constexpr std::size_t kTimedBytes = std::size_t{32} << 10;  // Copying less is cheaper than timing.

}  // namespace

// Makes the bucket the storage of a gradient again if it is not: after zero_grad(), which by
// default sets gradients to none, so that autograd keeps the tensor that backward made; or if the
// program has set another tensor as gradient. Costs nothing if backward has written into the
// bucket, otherwise a copy, which is less than zeroing the bucket and adding to it.
void Replica::adopt_gradient(std::size_t index) {
  torch::Tensor& gradient = trained_[index].tensor.mutable_grad();
  Progress& progress = progress_[index];
  if (gradient.is_same(progress.view)) return;
  check_gradient(index, gradient);
  const std::size_t bytes = progress.view.nbytes();
  const TimePoint begin = bytes < kTimedBytes ? TimePoint() : Clock::now();
  const bool is_on_host = location_.device.is_cpu() && !is_staged(index);
  const bool same_bytes = is_on_host && gradient.scalar_type() == progress.view.scalar_type() &&
                          gradient.strides() == progress.view.strides() && !gradient.is_neg() &&
                          !gradient.is_conj();
  if (same_bytes) {
    // The same as copy_(), which takes half a microsecond to choose this.
    const void* const data = gradient.const_data_ptr();
    if (bytes > 0 && data != progress.view_data) {
      gradient_memory_.learn(index, data);
      std::memcpy(progress.view_data, data, bytes);
    }
  } else {
    const torch::NoGradGuard no_grad;
    progress.view.copy_(gradient);
  }
  if (!is_staged(index)) gradient = progress.view;
  if (bytes >= kTimedBytes) spent_besides_ += Clock::now() - begin;
}

// Gives the gradient its place in the bucket. Returns false while another tensor has the place: if
// passes differ, one may have been lent it; or backward has made the gradient there, but a tensor
// that the graph has yet to read, or a view that a hook keeps, shares its storage. Most such
// tensors are freed within the pass. Until then grad() stays as it is, so that autograd does not
// add later gradients to memory that another tensor uses.
bool Replica::settle(std::size_t index) {
  const torch::Tensor& gradient = trained_[index].tensor.grad();
  if (gradient_memory_.is_lent(index)) {
    const bool is_there = gradient.defined() && gradient.layout() == torch::kStrided &&
                          gradient.const_data_ptr() == progress_[index].view_data;
    if (!is_there || gradient.storage().use_count() > 1) return false;
  }
  adopt_gradient(index);
  return !gradient_memory_.is_lent(index);
}

void Replica::mark_waiting() {
  std::erase_if(waiting_, [this](std::size_t index) {
    if (!settle(index)) return false;
    reducer_->mark_ready(index);
    return true;
  });
}

// At the end of a pass, other tensors may still have gradients' places. First, gradients move out
// of the places of other gradients: if two lay in each other's places, copying one would overwrite
// the other. Then the bytes of tensors that the program keeps in places are put aside until the
// step is reduced.
void Replica::borrow_places() {
  std::unordered_set<const void*> lent;
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    if (gradient_memory_.is_lent(i)) lent.insert(progress_[i].view_data);
  }
  for (std::size_t i = 0; i < progress_.size() && !lent.empty(); ++i) {
    torch::Tensor& gradient = trained_[i].tensor.mutable_grad();
    if (reducer_->is_ready(i) || !gradient.defined() || gradient.layout() != torch::kStrided) {
      continue;
    }
    const void* const memory = gradient.storage().data();
    if (memory == progress_[i].view_data || !lent.contains(memory)) continue;
    const torch::NoGradGuard no_grad;
    gradient = gradient.clone();
  }
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    if (reducer_->is_ready(i) || !gradient_memory_.is_lent(i)) continue;
    const auto* const bytes = static_cast<const std::byte*>(progress_[i].view_data);
    borrowed_.push_back({i, progress_[i].view, {bytes, bytes + progress_[i].view.nbytes()}});
  }
}

void Replica::return_places() {
  for (const Borrowed& borrowed : borrowed_) {
    torch::Tensor& gradient = trained_[borrowed.index].tensor.mutable_grad();
    if (gradient.is_same(borrowed.place)) gradient = gradient.clone();
    std::memcpy(borrowed.place.mutable_data_ptr(), borrowed.bytes.data(), borrowed.bytes.size());
  }
  borrowed_.clear();
}

}  // namespace stretto::ddp

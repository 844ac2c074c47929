// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace stretto::ddp {

// Lets backward write gradients where buckets want them, so that none is copied where gradients are
// set to none between steps. An allocator of ours stands before libtorch's for the CPU, from the
// first object of this class to the end of the process. While a pass runs it counts the requests of
// each size that a gradient has; the request that brought a gradient in the last pass is answered
// with the gradient's place in its bucket in this one. A program whose passes differ gets memory
// elsewhere, or another tensor gets the place: is_lent() tells the latter, and until that tensor is
// gone nobody may write there.
//
// Threads: tensors in lent places may end on any thread. begin_pass() is called on the thread that
// runs the pass, all else on it or between passes.
class GradientMemory {
 public:
  struct Place {
    void* data = nullptr;
    std::size_t bytes = 0;
    std::shared_ptr<const void> owner;  // Of the bucket, which outlives what is lent of it.
  };
  // Whether place `index` may be lent now: its gradient is still to come, and nothing is there.
  using IsFree = std::function<bool(std::size_t index)>;

  GradientMemory() = default;
  ~GradientMemory() { retire(); }
  GradientMemory(const GradientMemory&) = delete;
  GradientMemory& operator=(const GradientMemory&) = delete;

  // Replaces all places, for instance after buckets have been formed anew.
  void assign(const std::vector<Place>& places, IsFree is_free);
  // Lends nothing any more, until places are assigned.
  void retire();
  void begin_pass();
  void end_pass();
  // A gradient has come, in memory that libtorch's allocator was asked for.
  void learn(std::size_t index, const void* data);
  bool is_lent(std::size_t index) const;
  // Whether place `index` is large enough to be lent.
  bool may_lend(std::size_t index) const;

  struct State;

  // While it lives, this thread is lent no places, and its requests are not counted: for what makes
  // tensors in a pass that outlive it by far.
  class NoLending {
   public:
    NoLending();
    NoLending(const NoLending&) = delete;
    NoLending& operator=(const NoLending&) = delete;
    ~NoLending();

   private:
    std::vector<std::shared_ptr<State>> passes_;
  };

 private:
  std::shared_ptr<State> state_;
};

}  // namespace stretto::ddp

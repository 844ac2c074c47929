// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace stretto::ddp {

// Lets backward write gradients directly to their places in buckets, so that gradients that are set
// to none between steps need not be copied. From the first assign() to the end of the process, an
// allocator of stretto's wraps libtorch's for the CPU. While a backward pass runs, it counts the
// requests for memory, separately for each size that a gradient has. If request n of a size brought
// a gradient in the last pass, request n of this pass gets that gradient's place. If passes differ,
// the gradient may come to lie elsewhere, and another tensor may get its place. is_lent() says
// whether a tensor lies in a place; nobody else may write there until that tensor is freed.
//
// Threads: tensors in lent places may be freed on any thread. begin_pass() is called on the thread
// that runs the pass, all other functions on that thread or between passes.
class GradientMemory {
 public:
  struct Place {
    void* data = nullptr;
    std::size_t bytes = 0;
    std::shared_ptr<const void> owner;  // Keeps the bucket alive while tensors lie in it.
  };
  // Whether place `index` may be lent now: its gradient has not come, and nothing lies there.
  using IsFree = std::function<bool(std::size_t index)>;

  GradientMemory() = default;
  ~GradientMemory() { retire(); }
  GradientMemory(const GradientMemory&) = delete;
  GradientMemory& operator=(const GradientMemory&) = delete;

  // Replaces all places, for instance after buckets have been formed anew.
  void assign(const std::vector<Place>& places, IsFree is_free);
  // Stops lending until places are assigned again.
  void retire();
  void begin_pass();
  void end_pass();
  // Says that gradient `index` has come at address `data`: the request that returned this address
  // gets the gradient's place in the next pass.
  void learn(std::size_t index, const void* data);
  bool is_lent(std::size_t index) const;
  // Whether place `index` is large enough to be lent.
  bool may_lend(std::size_t index) const;

  struct State;

  // While it lives, requests of this thread get no places and are not counted. For code that makes
  // tensors during a pass which live much longer than the pass.
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

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <memory>

#include <torch/torch.h>

// All of libtorch's autograd internals that stretto uses, and so all that changes with its
// versions.
namespace stretto::ddp {

// Calls a function each time autograd has accumulated a gradient into `parameter.grad()`, on the
// thread that did so, for as long as this object lives. `parameter` must be a leaf that requires
// grad. What the function throws comes out of backward().
class GradientHook {
 public:
  GradientHook(const torch::Tensor& parameter, std::function<void()> on_accumulated);
  GradientHook(GradientHook&&) noexcept;
  GradientHook& operator=(GradientHook&&) = delete;
  ~GradientHook();

 private:
  struct Registration;
  std::unique_ptr<Registration> registration_;
};

// A number that identifies the backward pass that runs on this thread; passes inside of other
// passes (re-entrant ones, as checkpointing makes them) have numbers of their own. -1: none runs.
int current_backward();

// Calls `function` on this thread when the backward pass that runs now has computed everything.
// What it throws comes out of backward(). If the pass ends in an exception, `abandoned` is called
// instead, as soon as the exception leaves backward(); it must not throw. May only be called from a
// GradientHook's function.
void call_at_end_of_backward(std::function<void()> function, std::function<void()> abandoned);

// Whether the code that calls this was called by a node of a backward pass: true at the end of an
// inner pass, false at the end of the outermost one.
bool inside_backward_node();

}  // namespace stretto::ddp

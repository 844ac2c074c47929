// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <future>

#include <torch/torch.h>

// All of libtorch's autograd internals that stretto uses, and so all that changes with its
// versions.
namespace stretto::ddp {

// Calls a function each time autograd has accumulated a gradient into `parameter.grad()`, on the
// thread that did so, for as long as this object lives. It belongs to the tensor, so it stays when
// the tensor's data are replaced (torch::load, Module::to, set_data). What the function throws
// comes out of backward().
class GradientHook {
 public:
  GradientHook(const torch::Tensor& parameter, std::function<void()> on_accumulated);
  GradientHook(GradientHook&& other) noexcept;
  GradientHook& operator=(GradientHook&&) = delete;
  ~GradientHook();

  // Whether a tensor has one, of whomever: there is room for one.
  static bool exists_on(const torch::Tensor& parameter);

 private:
  torch::Tensor parameter_;
};

// Calls `function` whenever a backward pass that accumulates gradients comes through `output`, a
// tensor that is not a leaf, before it goes on. As long as the graph of `output` lives.
void call_when_backward_reaches(const torch::Tensor& output, std::function<void()> function);

// A number that identifies the backward pass that runs on this thread; passes inside of other
// passes (re-entrant ones, as checkpointing makes them) have numbers of their own. A pass that
// begins later has a greater one. -1: none runs.
int current_backward();

// Calls `function` on this thread when the backward pass that runs now has computed everything.
// What it throws comes out of backward(). If the pass ends in an exception, `abandoned` is called
// instead, when the exception leaves backward(), or a little later on a thread that autograd has
// for a device; what it throws itself is lost. May only be called while a pass runs on this thread.
// The result is ready when nothing of the pass runs any more, on any thread.
[[nodiscard]] std::future<void> call_at_end_of_backward(std::function<void()> function,
                                                        std::function<void()> abandoned);

// Identifies the node of a backward pass that has called the code that calls this: at the end of an
// inner pass the one that has begun it, at the end of the outermost one null.
const void* backward_node();

// For the end of an inner pass: calls `function` while the pass around it runs, before that goes
// on; and in later passes that go the same way, as those to a leaf do while a graph with it lives.
// `owner` tells callers apart; one function of each is enough, however often this is called. False:
// nothing of the pass around it comes behind the node that has begun the inner one.
bool call_in_enclosing_backward(const void* owner, const std::function<void()>& function);

}  // namespace stretto::ddp

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <functional>
#include <future>

#include <torch/torch.h>

// Wraps the autograd internals of libtorch that stretto uses, which may change with its versions.
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

  // Whether a tensor has a hook of this kind, from any code. Autograd has room for one per tensor.
  static bool exists_on(const torch::Tensor& parameter);

 private:
  torch::Tensor parameter_;
};

// Calls `function` each time a backward pass that accumulates gradients reaches `output`, before
// the pass goes on, for as long as the graph of `output` lives. `output` must not be a leaf.
void call_when_backward_reaches(const torch::Tensor& output, std::function<void()> function);

// The number of the backward pass that runs on this thread; -1 if none runs. A pass inside another
// one (a re-entrant pass, as checkpointing makes it) has a number of its own. A pass that begins
// later has a greater number.
int current_backward();

// Calls `function` on this thread when the backward pass that runs now has computed everything.
// What `function` throws comes out of backward(). If the pass ends in an exception, `abandoned` is
// called instead, when the exception leaves backward(), or a little later on a thread that autograd
// has for a device; what `abandoned` throws is lost. May only be called while a pass runs on this
// thread. The future is ready when nothing of the pass runs any more, on any thread.
[[nodiscard]] std::future<void> call_at_end_of_backward(std::function<void()> function,
                                                        std::function<void()> abandoned);

// Identifies the autograd node that runs on this thread: at the end of an inner pass the node that
// began that pass, at the end of the outermost pass null.
const void* backward_node();

// For the end of an inner pass: calls `function` in the enclosing pass, just before each node that
// follows the one which began the inner pass. Later passes that run such a node call `function`,
// too; the node of a leaf lives as long as any graph with that leaf. A node keeps one function for
// each `owner`: the first. Returns false if no node follows.
bool call_in_enclosing_backward(const void* owner, const std::function<void()>& function);

}  // namespace stretto::ddp

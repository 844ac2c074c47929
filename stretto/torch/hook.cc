// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/hook.h"

#include <cstdint>
#include <memory>
#include <utility>

#include <torch/csrc/autograd/engine.h>

namespace stretto::ddp {
namespace {

namespace autograd = torch::autograd;

class CallingPostHook : public autograd::FunctionPostHook {
 public:
  explicit CallingPostHook(std::function<void()> function) : function_(std::move(function)) {}

  autograd::variable_list operator()(const autograd::variable_list& outputs,
                                     const autograd::variable_list&) override {
    function_();
    return outputs;
  }

 private:
  std::function<void()> function_;
};

// What the end of a backward pass calls. The pass owns it, and goes without a call if it has
// failed.
class EndOfPass {
 public:
  EndOfPass(std::function<void()> function, std::function<void()> abandoned)
      : function_(std::move(function)), abandoned_(std::move(abandoned)) {}
  EndOfPass(const EndOfPass&) = delete;
  EndOfPass& operator=(const EndOfPass&) = delete;
  ~EndOfPass() {
    if (!called_) abandoned_();
  }
  void call() {
    called_ = true;
    function_();
  }

 private:
  std::function<void()> function_;
  std::function<void()> abandoned_;
  bool called_ = false;
};

}  // namespace

// The parameter itself knows its accumulator only weakly; holding it here keeps the hook alive. The
// pointer is std::shared_ptr up to libtorch 2.12 and c10::intrusive_ptr from 2.13 on.
struct GradientHook::Registration {
  decltype(autograd::impl::grad_accumulator(std::declval<const torch::Tensor&>())) accumulator;
  std::uintptr_t key = 0;
};

GradientHook::GradientHook(const torch::Tensor& parameter, std::function<void()> on_accumulated)
    : registration_(std::make_unique<Registration>()) {
  registration_->accumulator = autograd::impl::grad_accumulator(parameter);
  registration_->key = registration_->accumulator->add_post_hook(
      std::make_unique<CallingPostHook>(std::move(on_accumulated)));
}

GradientHook::GradientHook(GradientHook&&) noexcept = default;

GradientHook::~GradientHook() {
  if (registration_) registration_->accumulator->del_post_hook(registration_->key);
}

int current_backward() { return autograd::get_current_graph_task_id(); }

void call_at_end_of_backward(std::function<void()> function, std::function<void()> abandoned) {
  auto end = std::make_shared<EndOfPass>(std::move(function), std::move(abandoned));
  autograd::Engine::get_default_engine().queue_callback([end = std::move(end)] { end->call(); });
}

bool inside_backward_node() {
  const auto node = autograd::get_current_node();
  return node != nullptr;
}

}  // namespace stretto::ddp

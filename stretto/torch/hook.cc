// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/hook.h"

#include <exception>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "stretto/base/mutex.h"

namespace stretto::ddp {
namespace {

namespace autograd = torch::autograd;

class AccumulatedHook : public autograd::PostAccumulateGradHook {
 public:
  explicit AccumulatedHook(std::function<void()> function) : function_(std::move(function)) {}
  void operator()(const autograd::Variable&) override { function_(); }

 private:
  std::function<void()> function_;
};

class EnclosingHook : public autograd::FunctionPreHook {
 public:
  EnclosingHook(const void* owner, std::function<void()> function)
      : owner_(owner), function_(std::move(function)) {}
  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    function_();
    return gradients;
  }
  static bool exists_on(autograd::Node& node, const void* owner) {
    for (const auto& hook : node.pre_hooks()) {
      const auto* const enclosing = dynamic_cast<const EnclosingHook*>(hook.get());
      if (enclosing != nullptr && enclosing->owner_ == owner) return true;
    }
    return false;
  }

 private:
  const void* owner_;
  std::function<void()> function_;
};

// What the end of a backward pass calls. The pass owns this object, and destroys it without a
// call() if the pass has failed.
class EndOfPass {
 public:
  EndOfPass(std::function<void()> function, std::function<void()> abandoned)
      : function_(std::move(function)), abandoned_(std::move(abandoned)) {}
  EndOfPass(const EndOfPass&) = delete;
  EndOfPass& operator=(const EndOfPass&) = delete;
  ~EndOfPass() {
    try {
      if (!called_) abandoned_();
    } catch (...) {  // The exception that ended the pass is being thrown, and says more.
    }
    over_.set_value();
  }
  std::future<void> over() { return over_.get_future(); }
  void call() {
    called_ = true;
    function_();
  }

 private:
  std::function<void()> function_;
  std::function<void()> abandoned_;
  bool called_ = false;
  std::promise<void> over_;
};

// All that the end of a backward pass calls. libtorch itself stops at the first callback that
// throws, and would so abandon the passes of all later models, and abort their communicators.
class EndsOfPass {
 public:
  // Adds `end` to those of the backward pass that runs on this thread.
  static void add_to_current(const std::shared_ptr<EndOfPass>& end) {
    static Mutex mutex;
    static std::map<int, std::weak_ptr<EndsOfPass>> running;
    const MutexLock lock(mutex);
    std::erase_if(running, [](const auto& pass) { return pass.second.expired(); });
    std::weak_ptr<EndsOfPass>& current = running[current_backward()];
    if (const auto ends = current.lock(); ends != nullptr && ends->add(end)) return;
    const auto ends = std::make_shared<EndsOfPass>();
    current = ends;
    ends->add(end);
    autograd::Engine::get_default_engine().queue_callback([ends] { ends->call(); });
  }

 private:
  // False if all have been called.
  bool add(const std::shared_ptr<EndOfPass>& end) {
    const MutexLock lock(mutex_);
    if (!are_called_) ends_.push_back(end);
    return !are_called_;
  }
  std::shared_ptr<EndOfPass> next() {
    const MutexLock lock(mutex_);
    are_called_ = called_ == ends_.size();
    return are_called_ ? nullptr : ends_[called_++];
  }
  void call() {
    std::exception_ptr failure;
    while (const auto end = next()) {
      try {
        end->call();
      } catch (...) {
        if (failure == nullptr) failure = std::current_exception();
      }
    }
    if (failure != nullptr) std::rethrow_exception(failure);
  }

  Mutex mutex_;
  std::vector<std::shared_ptr<EndOfPass>> ends_ STRETTO_GUARDED_BY(mutex_);
  std::size_t called_ STRETTO_GUARDED_BY(mutex_) = 0;
  bool are_called_ STRETTO_GUARDED_BY(mutex_) = false;
};

}  // namespace

GradientHook::GradientHook(const torch::Tensor& parameter, std::function<void()> on_accumulated)
    : parameter_(parameter) {
  autograd::impl::set_post_acc_grad_hooks(
      parameter_, std::make_unique<AccumulatedHook>(std::move(on_accumulated)));
}

GradientHook::GradientHook(GradientHook&& other) noexcept
    : parameter_(std::exchange(other.parameter_, torch::Tensor())) {}

GradientHook::~GradientHook() {
  if (parameter_.defined()) autograd::impl::set_post_acc_grad_hooks(parameter_, nullptr);
}

bool GradientHook::exists_on(const torch::Tensor& parameter) {
  return autograd::impl::post_acc_grad_hooks(parameter) != nullptr;
}

void call_when_backward_reaches(const torch::Tensor& output, std::function<void()> function) {
  output.register_hook([function = std::move(function)](const torch::Tensor&) {
    // A pass that computes chosen gradients (torch::autograd::grad) accumulates none.
    const auto* const chosen = autograd::get_current_graph_task_exec_info();
    if (chosen == nullptr || chosen->empty()) function();
  });
}

int current_backward() { return autograd::get_current_graph_task_id(); }

std::future<void> call_at_end_of_backward(std::function<void()> function,
                                          std::function<void()> abandoned) {
  auto end = std::make_shared<EndOfPass>(std::move(function), std::move(abandoned));
  std::future<void> over = end->over();
  EndsOfPass::add_to_current(end);
  return over;
}

const void* backward_node() {
  const auto node = autograd::get_current_node();
  return node.get();
}

// The current node is already running, so the hooks go to the nodes to which it hands its
// gradients: these come next in the enclosing pass.
bool call_in_enclosing_backward(const void* owner, const std::function<void()>& function) {
  const auto node = autograd::get_current_node();
  if (node == nullptr) return false;
  bool is_called = false;
  for (const autograd::Edge& edge : node->next_edges()) {
    if (edge.function == nullptr) continue;
    is_called = true;
    if (EnclosingHook::exists_on(*edge.function, owner)) continue;
    edge.function->add_pre_hook(std::make_unique<EnclosingHook>(owner, function));
  }
  return is_called;
}

}  // namespace stretto::ddp

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What happens to a replica's gradients while a backward pass runs, and at its end.

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include <c10/util/ScopeExit.h>

#include "stretto/base/refuse.h"
#include "stretto/torch/devices.h"
#include "stretto/torch/parameters.h"
#include "stretto/torch/replica.h"
#include "stretto/torch/sync_batch_norm.h"
#include "stretto/torch/tensor_bytes.h"

namespace stretto::ddp {
namespace {

// New parameters of the module are looked for in so many first steps, and then every so many steps.
constexpr std::uint64_t kFirstSteps = 3;
constexpr std::uint64_t kStepsBetweenLooks = 64;

void check_kind(const std::string& name, const torch::Tensor& gradient) {
  if (gradient.layout() != torch::kStrided) {
    refuse(
        "the gradient of '{}' is sparse; name it in the option sparse_parameters of "
        "DistributedDataParallel",
        name);
  }
  if (gradient.requires_grad()) {
    refuse(
        "backward(create_graph = true) does not work through DistributedDataParallel: the "
        "reduced gradient of '{}' would not be differentiable; use torch::autograd::grad",
        name);
  }
}

std::string why_replicas_differ(std::uint64_t step, bool replaced, bool joined) {
  if (replaced) {
    return "parameters were replaced on some rank (torch::load, set_data, Module::to), and not by "
           "the same values on all: do it on all ranks, or before DistributedDataParallel is "
           "built. Or an optimizer that steps in backward failed in the middle of a step: load a "
           "state";
  }
  if (joined) {
    return "step " + std::to_string(step) +
           ", after join(), began with different parameters: name the optimizers in "
           "UnevenInputsOptions::optimizers, since ranks that ran out of batches have stepped them "
           "less often than others";
  }
  return "step " + std::to_string(step) +
         " began with different parameters: all ranks must step with the same optimizer, and "
         "change parameters alike";
}

}  // namespace

// A pass that reaches `output` is a step even if no parameter of the module gets a gradient on this
// rank: other ranks may be waiting in that step.
void Replica::after_forward(const torch::Tensor& output) {
  if (!output.requires_grad() || output.is_leaf()) return;
  // Autograd's thread of the output's device comes here first, then those of the parameters.
  if (!parameters_.empty() && output.device() != parameters_.front().tensor.device()) {
    is_spread_ = true;
  }
  call_when_backward_reaches(output, [self = std::weak_ptr(self_)] {
    const auto alive = self.lock();
    if (alive == nullptr) {
      refuse(
          "backward() comes through the output of a DistributedDataParallel that has ended, and "
          "nothing would reduce the gradients: it must live until backward() has returned");
    }
    const auto lock = (*alive)->exclusive();
    if ((*alive)->no_sync_depth_ > 0) return (*alive)->begin_silent_pass();
    // The step may have ended in an inner pass, which began later than this one.
    const bool is_over = !(*alive)->pass_open_ && current_backward() < (*alive)->last_backward_;
    if (!is_over) (*alive)->begin_pass();
  });
}

void Replica::begin_pass() {
  const int backward = current_backward();
  if (backward == last_backward_) return;
  // With all parameters frozen a pass is no step: outside of join() once a step has shown that this
  // is so on all ranks, inside join() at once, because a rank without data would not know it.
  if (is_frozen_everywhere_ || (uneven_ && all_are_frozen())) return begin_silent_pass();
  last_backward_ = backward;
  if (!pass_open_ && uneven_) announce_pass();
  pass_open_ = true;
  gradient_memory_.begin_pass();
  const auto end = [this] {
    const auto lock = exclusive();
    end_of_backward();
  };
  pass_ = call_at_end_of_backward(end, [this] { abandon_pass(); });
}

// For a pass that reduces nothing, inside of no_sync() or with all parameters frozen. Its end only
// matters if it puts parameters back, if a failure must abort layers of SyncBatchNorm, or if other
// threads run it, for which wait_for_pass() waits.
void Replica::begin_silent_pass() {
  accumulated_ = true;
  if (!precision_.entered() && !has_sync_batch_norm_ && is_on_cpu_ && !is_spread_) return;
  const int backward = current_backward();
  if (backward == last_backward_) return;
  last_backward_ = backward;
  const auto leave = [this] {
    if (backward_node() == nullptr) precision_.leave();
  };
  pass_ = call_at_end_of_backward(leave, [this] { abandon_pass(); });
}

void Replica::look_at_devices() {
  is_spread_ = std::ranges::any_of(device_numbers(parameters_), [](int at) { return at > 0; });
  is_on_cpu_ = std::ranges::all_of(
      parameters_, [](const NamedTensor& each) { return each.tensor.device().is_cpu(); });
}

// When an exception has left backward(), threads of devices may still run functions of the pass.
void Replica::wait_for_pass() const {
  if (pass_.valid() && current_backward() < 0) pass_.wait();
}

std::unique_lock<std::mutex> Replica::exclusive() {
  std::unique_lock lock(pass_mutex_, std::defer_lock);
  if (is_spread_) lock.lock();
  return lock;
}

void Replica::on_gradient(std::size_t index) {
  if (!trained_[index].tensor.requires_grad()) return;  // Frozen after forward(): has no gradient.
  Progress& progress = progress_[index];
  progress.touched = true;
  if (progress.outgrown) {
    if (no_sync_depth_ == 0) begin_pass();
    return;
  }
  const bool reduces = no_sync_depth_ == 0;
  // Gradients stay where autograd puts them until a pass reduces them.
  if (!reduces && !precision_.entered()) return;
  if (reduces) {
    begin_pass();
  } else {
    begin_silent_pass();
  }
  // A communication hook may keep tensors that it makes. If one had a lent place, the bucket of
  // that place would have to wait for it.
  const GradientMemory::NoLending elsewhere;
  try {
    if (!waiting_.empty()) mark_waiting();
    settle(index);
    if (!reduces) return;
    progress.last_arrival = ++arrivals_;
    const bool complete = ++progress.arrivals == progress.expected && graph_known_;
    if (options_.static_graph && !complete) return;
    // Autograd holds the gradient until this hook returns, so one that backward has made in its
    // place waits for the next hook. Each gradient that backward may make there waits, wherever it
    // was made, so that ranks hand gradients over alike.
    if (gradient_memory_.may_lend(index)) {
      waiting_.push_back(index);
    } else {
      reducer_->mark_ready(index);
    }
  } catch (const Error& error) {
    own_failure_ = error.what();
    throw;
  }
}

void Replica::on_sparse_gradient() {
  if (no_sync_depth_ == 0) begin_pass();
}

void Replica::abandon_pass() {
  const auto lock = exclusive();
  if (pass_open_) reducer_->abandon_step(own_failure_);  // First, since other ranks wait.
  for (SyncBatchNormImpl* const layer : sync_batch_norms_of(*module_)) {
    layer->abort("an exception ended its backward pass");
  }
  gradient_memory_.end_pass();
  waiting_.clear();
  accumulated_ = false;  // Ranks may have accumulated different parts of the pass.
  for (StepInBackward& stepping : stepping_) stepping.forget();
  precision_.leave();
}

void Replica::check_gradient(std::size_t index, const torch::Tensor& gradient) const {
  check_kind(trained_[index].name, gradient);
  const torch::Device device = trained_[index].tensor.device();
  if (gradient.device() != device) {
    refuse("the gradient of '{}' is on {}, and the parameter is on {}", trained_[index].name,
           gradient.device().str(), device.str());
  }
  const torch::Tensor& view = progress_[index].view;
  const bool same_type =
      gradient.scalar_type() == view.scalar_type() || precision_.makes(gradient.scalar_type());
  if (!same_type || gradient.sizes() != view.sizes()) {
    refuse(
        "parameter '{}' has changed its type or shape since the last forward pass of "
        "DistributedDataParallel; change it before forward()",
        trained_[index].name);
  }
}

void Replica::end_of_backward() {
  if (!pass_open_) return;
  const auto all_have_come = [this] {
    for (std::size_t i = 0; i < progress_.size(); ++i) {
      if (reducer_->is_ready(i) || reducer_->is_frozen(i)) continue;
      if (std::ranges::find(waiting_, i) == waiting_.end()) return false;
    }
    return sparse_.empty() && !outgrown_;
  };
  // If passes of ranks may differ, or something waits in them, another rank may already be in the
  // enclosing pass and wait there. And parameters of an optimizer that steps in backward, but of no
  // model, may get their gradients only in the enclosing pass.
  const bool is_postponed =
      passes_may_differ() || !stepping_.empty() || WaitsInBackward::count() > 0;
  const void* const node = backward_node();
  // If the step's forward pass ran in the same node, this inner pass is its whole backward pass,
  // and the program expects the step to end with it.
  const bool is_inner = node != nullptr && node != began_in_;
  if (is_inner && (is_postponed || !all_have_come())) {
    // It may be one of several inner passes of the step, or the last of them: let the enclosing
    // pass end the step.
    const bool goes_on = call_in_enclosing_backward(this, [self = std::weak_ptr(self_)] {
      const auto alive = self.lock();
      if (alive == nullptr) return;
      const auto lock = (*alive)->exclusive();
      // The next node may also run when the step has ended, or again in a later pass.
      if ((*alive)->pass_open_) (*alive)->begin_pass();
    });
    if (goes_on) return;
  }
  pass_open_ = false;
  gradient_memory_.end_pass();
  precision_.leave();
  const auto give_back = c10::make_scope_exit([this] { return_places(); });
  const bool knew_graph = graph_known_;
  try {
    mark_waiting();
    borrow_places();
    waiting_.clear();
    complete_gradients();
  } catch (const std::exception& error) {
    waiting_.clear();
    reducer_->abandon_step(error.what());
    throw;
  }
  try {
    finalize(true);
    finish_step();
  } catch (...) {  // A hook or an optimizer of the program may throw any type.
    // The next step begins anew. If the first step of a static graph fails, its graph does not
    // count as known.
    forget_progress();
    graph_known_ = graph_known_ && knew_graph;
    // Ranks may have stepped different parameters: the next step compares replicas.
    owes_verification_ = owes_verification_ || !stepping_.empty();
    for (StepInBackward& stepping : stepping_) stepping.forget();
    throw;
  }
}

void Replica::forget_progress() {
  for (Progress& progress : progress_) {
    progress.touched = false;
    progress.arrivals = 0;
  }
  arrivals_ = 0;
  accumulated_ = false;
  own_failure_.clear();
}

// In the first step of a static graph, hands gradients over in the order of their last arrivals.
void Replica::complete_gradients() {
  if (!std::exchange(seen_, false)) refuse_unseen_changes();
  if (refusal_.ok()) {
    check_sparse_gradients(sparse_);
    if (outgrown_) check_late_gradients();
  }
  std::vector<std::size_t> order;
  if (options_.static_graph && !graph_known_) {
    order.resize(progress_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return progress_[i].last_arrival; });
  }
  bool changed = false;
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    changed = complete_gradient(order.empty() ? i : order[i]) || changed;
  }
  const std::uint64_t step = reducer_->step_count();
  const bool is_due = step < kFirstSteps || step % kStepsBetweenLooks == 0;
  if (changed || is_due || has_new_parameters_) look_for_new_parameters();
  graph_known_ = true;  // Reset if the step fails, or by a new reducer.
}

// Completes a gradient at the end of a pass. If only earlier passes inside no_sync() have made it,
// it becomes ready. If no pass has, this rank contributes grad() as it is, or zero if undefined.
// Returns whether the gradient came more or less often than in the step before.
bool Replica::complete_gradient(std::size_t index) {
  Progress& progress = progress_[index];
  const bool changed = graph_known_ && progress.arrivals != progress.expected;
  if (changed) reducer_->request(Reducer::Request::graph_changed);
  if (!graph_known_ || !options_.static_graph) progress.expected = progress.arrivals;
  if (reducer_->is_frozen(index)) return changed;
  if (changed && options_.static_graph && !progress.owed) reducer_->mark_changed(index);
  if (reducer_->is_ready(index)) return changed;
  if (trained_[index].tensor.grad().defined()) {
    adopt_gradient(index);
  } else {
    progress.touched = false;  // The program has cleared what passes inside no_sync() have added.
    if (progress.view_data != nullptr) location_.memory->clear(reducer_->gradient_bytes(index));
  }
  if (progress.touched) reducer_->mark_ready(index);
  return changed;
}

void Replica::step_in_backward(torch::optim::Optimizer* optimizer) {
  if (pass_open_) refuse("step_in_backward() is called inside of a backward pass");
  if (optimizer != nullptr && precision_.is_on()) {
    refuse(
        "step_in_backward() and the option mixed_precision.parameter_dtype exclude each other: "
        "until the end of backward the module holds parameters in that type; call "
        "optimizer.step() after backward()");
  }
  if (optimizer != nullptr) check_on_cpu(parameters_, "step_in_backward()");
  if (optimizer == nullptr) return stepping_.clear();
  const auto is_known = [&](const StepInBackward& known) {
    return &known.optimizer() == optimizer;
  };
  if (std::ranges::any_of(stepping_, is_known)) return;
  stepping_.emplace_back(*optimizer, tensors_of(parameters_));
}

// Steps the bucket's parameters if their gradients are final. Not parameters that this rank has not
// used, which may turn out to be unused on all ranks. Nothing inside join(), where gradients are
// final only at the end of the pass, and nothing while places are borrowed: the tensor that a place
// was lent to may be an optimizer's state.
void Replica::on_reduced(const FullBucket& bucket) {
  if (stepping_.empty() || uneven_ || !borrowed_.empty()) return;
  reduced_.clear();
  for (const std::size_t i : bucket.gradients) {
    if (reducer_->is_ready(i) && !is_staged(i)) reduced_.push_back(trained_[i].tensor);
  }
  if (reduced_.empty()) return;
  const TimePoint begin = Clock::now();
  for (StepInBackward& stepping : stepping_) stepping.step(reduced_);
  spent_besides_ -= Clock::now() - begin;  // The reducer counts this time as communication.
}

void Replica::check_late_gradients() const {
  const std::vector<std::string> sparse = sparse_names();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, tensor] = parameters_[i];
    if (!is_outgrown(i) || contains(sparse, name) || !tensor.grad().defined()) continue;
    check_kind(name, tensor.grad());
  }
}

// Ends the step of the reducer. If parameters of some rank have outgrown it, all ranks compare
// theirs.
void Replica::finalize(bool with_data) {
  if (with_data) {
    reducer_->finalize();
  } else {
    reducer_->finalize_without_data();
  }
  if (!reducer_->requested(Reducer::Request::other_gradients)) return;
  agree_on_refusal();
  try {
    verify_descriptions();
  } catch (const Mismatch& mismatch) {
    mismatch.status()
        .with_context(
            "some rank has unfrozen or converted parameters or buffers since its last step, and "
            "not all ranks alike: do it on all ranks before the same forward pass")
        .or_throw();
  }
  reducer_->judge_gradients();
}

void Replica::settle_gradients(double scale) {
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    if (!reducer_->was_used(i)) continue;
    if (scale != 1) progress_[i].view.mul_(scale);
    torch::Tensor& gradient = trained_[i].tensor.mutable_grad();
    if (is_staged(i)) {
      const torch::NoGradGuard no_grad;
      if (!gradient.defined()) gradient = torch::empty_like(trained_[i].tensor);
      gradient.copy_(progress_[i].view);  // Returns when the bucket may be written again.
    } else if (!gradient.is_same(progress_[i].view)) {
      gradient = progress_[i].view;
    }
  }
}

void Replica::verify_after_step(bool replaced) {
  const bool joined = verify_from_ > 0 && last_step_.step >= verify_from_;
  const bool due =
      options_.verify_every_steps > 0 && last_step_.step % options_.verify_every_steps == 0;
  if (!replaced && !due && !joined) return;
  try {
    verify_replicas();
  } catch (const Mismatch& mismatch) {
    mismatch.status()
        .with_context(why_replicas_differ(last_step_.step, replaced, joined))
        .or_throw();
  }
  // Only now: until replicas are equal, each step throws that they are not.
  if (joined) verify_from_ = 0;
  if (replaced) owes_verification_ = false;
}

// If an optimizer throws on this rank only, the other ranks would wait: give_up() tells them.
void Replica::finish_stepping() {
  try {
    for (StepInBackward& stepping : stepping_) stepping.finish();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    reducer_->give_up("an optimizer has failed behind the backward pass: " + text_of(error));
    throw;
  }
}

void Replica::finish_step() {
  const TimePoint begin = Clock::now();
  const bool all_have_data = !uneven_ || uneven_->ranks_with_data() == communicator_.size();
  double scale = 1;
  if (!all_have_data && join_options_.mean_over_ranks_with_data) {
    scale = static_cast<double>(communicator_.size()) / uneven_->ranks_with_data();
  }
  same_graph_ = same_graph_ && !reducer_->requested(Reducer::Request::graph_changed);
  is_frozen_everywhere_ = all_are_frozen();
  const bool replaced = reducer_->requested(Reducer::Request::verification);
  last_step_ = reducer_->last_step();
  settle_gradients(scale);
  return_places();  // Before late and sparse gradients, which may lie in these places, are read.
  if (reducer_->requested(Reducer::Request::other_gradients)) build_anew(true, scale);
  forget_progress();
  reduce_sparse_gradients(communicator_, sparse_, true, scale, options_.timeout);
  spent_besides_ += Clock::now() - begin;
  finish_stepping();
  const TimePoint stepped = Clock::now();
  timer_.add(last_step_);
  if (all_have_data) verify_after_step(replaced);
  if (reducer_->rebuild()) adopt_new_buckets();
  const Duration spent = Clock::now() - stepped + std::exchange(spent_besides_, Duration(0));
  last_step_.exposed_seconds += seconds(spent);
}

void Replica::adopt_new_buckets() {
  has_rebuilt_buckets_ = true;
  std::vector<bool> in_bucket;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    in_bucket.push_back(trained_[i].tensor.grad().is_same(progress_[i].view));
  }
  create_views();
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    if (in_bucket[i]) trained_[i].tensor.mutable_grad() = progress_[i].view;
  }
}

}  // namespace stretto::ddp

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Training loops in which ranks may run different numbers of steps.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <c10/util/ScopeExit.h>

#include "stretto/base/refuse.h"
#include "stretto/torch/optimizer_parts.h"
#include "stretto/torch/optimizer_state.h"
#include "stretto/torch/replica.h"
#include "stretto/torch/sync_batch_norm.h"

namespace stretto::ddp {
namespace {

// The loop of the join() that runs on this thread.
thread_local std::shared_ptr<JoinedLoop> loop_of_thread;

// After a forward pass without a backward pass, parameters still hold copies. Puts them back for
// all models of the loop, since a ShardedOptimizer may step their parameters while this rank
// follows. Returns a refusal instead of throwing it: the other ranks wait for this rank anyway.
std::exception_ptr put_parameters_back(const std::vector<Replica*>& models) {
  std::exception_ptr refusal;
  for (Replica* const model : models) {
    try {
      model->put_parameters_back();
    } catch (const Error&) {
      refusal = std::current_exception();
    }
  }
  return refusal;
}

// The other ranks go on with a step that this rank cannot follow, and must not wait for it.
[[noreturn]] void refuse_to_follow(Communicator& communicator, const std::string& why) {
  communicator.abort(why);
  throw Mismatch(Status(StatusCode::mismatch, why));
}

// If parameters have more bytes than this, their gradients are sent in several parts: so each copy
// is short, and each operation has a deadline of its own.
constexpr std::size_t kPartBytes = std::size_t{32} << 20;

// Copies the gradients of `parameters` from `root` to all ranks.
void broadcast_gradients_of(std::span<const NamedTensor> parameters, Communicator& communicator,
                            Rank root, const std::optional<Duration>& timeout) {
  const auto key = [](std::size_t i) { return "gradient" + std::to_string(i); };
  std::ostringstream text;
  if (communicator.rank() == root) {
    torch::serialize::OutputArchive archive;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const torch::Tensor& gradient = parameters[i].tensor.grad();
      if (!gradient.defined()) continue;
      // Copied, because an archive writes the whole bucket of a gradient that is a view of it.
      archive.write(key(i), gradient.to(torch::kCPU, gradient.scalar_type(),
                                        /*non_blocking=*/false, /*copy=*/true));
    }
    archive.save_to(text);
  }
  const ByteVector bytes = broadcast_text(communicator, text.str(), root, timeout);
  if (communicator.rank() == root) return;
  torch::serialize::InputArchive archive = archive_of(bytes, torch::kCPU);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const torch::Tensor& parameter = parameters[i].tensor;
    torch::Tensor gradient;
    if (archive.try_read(key(i), gradient)) gradient = gradient.to(parameter.device());
    parameter.mutable_grad() = gradient;
  }
}

// The same in parts. A rank that has run out of batches has the gradients of its own last step, or
// none, and others may have zeroed theirs since. Replicas would differ after the next step: an
// optimizer skips a parameter without a gradient, but not one with zeros.
void broadcast_gradients(std::span<const NamedTensor> parameters, Communicator& communicator,
                         Rank root, const std::optional<Duration>& timeout) {
  while (!parameters.empty()) {
    std::size_t count = 1, bytes = parameters.front().tensor.nbytes();
    while (count < parameters.size() && bytes < kPartBytes) {
      bytes += parameters[count++].tensor.nbytes();
    }
    broadcast_gradients_of(parameters.first(count), communicator, root, timeout);
    parameters = parameters.subspan(count);
  }
}

}  // namespace

void Replica::join(const std::function<void()>& loop, const UnevenInputsOptions& options) {
  if (uneven_ != nullptr) refuse("join() is called inside of join() of the same model");
  if (!sync_batch_norms_of(*module_).empty()) {
    refuse("join() does not work with SyncBatchNorm, in which a rank without data would be missed");
  }
  const bool is_outermost = loop_of_thread == nullptr;
  if (!is_outermost && &loop_of_thread->models.back()->communicator_ != &communicator_) {
    refuse("join() is called inside of join() of a model with another communicator");
  }
  if (is_outermost) loop_of_thread = std::make_shared<JoinedLoop>(communicator_, options_.timeout);
  uneven_ = loop_of_thread;
  join_options_ = options;
  uneven_->models.push_back(this);
  const auto at_end =
      c10::make_scope_exit([this, before = uneven_->joinables.size()] { leave(before); });
  enter(options);
  const std::uint64_t steps_before = reducer_->step_count();
  loop();
  if (std::ranges::find(uneven_->joinables, nullptr) != uneven_->joinables.end()) {
    refuse_to_follow(
        communicator_,
        "what UnevenInputsOptions::joinables names was destroyed in the loop on rank " +
            std::to_string(communicator_.rank().value()) +
            ": it must live until join() has returned");
  }
  const std::exception_ptr refusal = stretto::ddp::put_parameters_back(uneven_->models);
  follow_others();
  if (refusal != nullptr) std::rethrow_exception(refusal);
  const Rank leader = uneven_->leader();
  for (Joinable* const joinable : options.joinables) joinable->finish(leader);
  broadcast_state(leader);
  const bool has_stepped = reducer_->step_count() != steps_before;
  if (has_stepped && uneven_->ranks_with_data() < communicator_.size()) {
    broadcast_gradients(parameters_, communicator_, leader, options_.timeout);
    forget_progress();  // What passes inside no_sync() have added to gradients is gone.
  }
  for (torch::optim::Optimizer* const optimizer : options.optimizers) {
    broadcast_optimizer(*optimizer, communicator_, leader, options_.timeout);
  }
  for (const StepInBackward& stepping : stepping_) {
    broadcast_optimizer(stepping.optimizer(), communicator_, leader, options_.timeout);
  }
  // If `options` leaves out an optimizer whose state differs between ranks, the next step makes
  // parameters differ, and the step after that finds it.
  verify_from_ = reducer_->step_count() + 2;
}

void Replica::enter(const UnevenInputsOptions& options) {
  for (Joinable* const joinable : options.joinables) {
    if (joinable == nullptr) refuse("UnevenInputsOptions::joinables names a null pointer");
    if (joinable->loop_ != nullptr) refuse("UnevenInputsOptions::joinables names something twice");
    if (&joinable->communicator_ != &communicator_) {
      refuse("UnevenInputsOptions::joinables names something of another communicator");
    }
    joinable->begin();
    joinable->loop_ = uneven_.get();
    joinable->number_ = uneven_->joinables.size();
    uneven_->joinables.push_back(joinable);
  }
  // One call of join() may name the optimizer, and another one its ShardedOptimizer.
  for (const Replica* const model : uneven_->models) {
    for (const torch::optim::Optimizer* const optimizer : model->join_options_.optimizers) {
      const auto shares_out = [optimizer](const Joinable* joinable) {
        return joinable != nullptr && joinable->shares_out(*optimizer);
      };
      if (std::ranges::none_of(uneven_->joinables, shares_out)) continue;
      refuse(
          "UnevenInputsOptions::optimizers names the optimizer of a ShardedOptimizer, of whose "
          "state each rank has a part: name the ShardedOptimizer in "
          "UnevenInputsOptions::joinables only");
    }
  }
}

void Replica::leave(std::size_t joinables_before) {
  for (; uneven_->joinables.size() > joinables_before; uneven_->joinables.pop_back()) {
    Joinable* const joinable = uneven_->joinables.back();
    if (joinable != nullptr) joinable->loop_ = nullptr;
  }
  uneven_->models.pop_back();
  if (uneven_->models.empty()) loop_of_thread.reset();
  uneven_.reset();
}

// Takes part in the steps of other ranks when this rank has no data left.
void Replica::follow_others() {
  while (true) {
    const auto announced = uneven_->listen();
    const std::uint64_t number = announced.number;
    if (announced.phase == reducer::UnevenSteps::Phase::finished) return;
    if (announced.phase == reducer::UnevenSteps::Phase::joinable) {
      if (number >= uneven_->joinables.size()) {
        refuse_to_follow(
            communicator_,
            "others step what they have named in UnevenInputsOptions::joinables, and this rank has "
            "not: name the same on all ranks");
      }
      uneven_->joinables[number]->follow(announced.what);
      continue;
    }
    const auto is_meant = [number](const Replica* replica) { return replica->number_ == number; };
    const auto replica = std::ranges::find_if(uneven_->models, is_meant);
    if (replica == uneven_->models.end()) {
      refuse_to_follow(communicator_,
                       "others run a step of model " + std::to_string(number) +
                           ", whose join() has ended on this rank: call join() of all models of a "
                           "loop around it, in the same order on all ranks");
    }
    (*replica)->follow(announced.phase);
  }
}

void Replica::follow(reducer::UnevenSteps::Phase phase) {
  if (phase == reducer::UnevenSteps::Phase::buffers) return run_buffer_hook();
  {
    borrow_places();
    const auto give_back = c10::make_scope_exit([this] { return_places(); });
    finalize(false);
  }
  same_graph_ = same_graph_ && !reducer_->requested(Reducer::Request::graph_changed);
  if (reducer_->requested(Reducer::Request::other_gradients)) build_anew(false, 1);
  reduce_sparse_gradients(communicator_, sparse_, false, 1, options_.timeout);
  if (reducer_->rebuild()) adopt_new_buckets();
}

// Refuses a pass through two models: a rank without data would take part in the step of the first
// model to its end before it hears of the second.
void Replica::announce_pass() {
  const auto is_open = [](const Replica* replica) { return replica->pass_open_; };
  if (std::ranges::any_of(uneven_->models, is_open)) {
    refuse("inside join() of two models each backward pass must go through one of them only");
  }
  uneven_->announce(reducer::UnevenSteps::Phase::gradients, number_);
}

}  // namespace stretto::ddp

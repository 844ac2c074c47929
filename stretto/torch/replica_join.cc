// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Loops of which ranks may run different numbers of steps.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include <c10/util/ScopeExit.h>

#include "stretto/base/refuse.h"
#include "stretto/torch/optimizer_state.h"
#include "stretto/torch/replica.h"
#include "stretto/torch/sync_batch_norm.h"

namespace stretto::ddp {
namespace {

// That of the join() which runs on this thread.
thread_local std::shared_ptr<JoinedLoop> loop_of_thread;

// The others go on with what this rank cannot follow, and must not wait for it.
[[noreturn]] void refuse_to_follow(Communicator& communicator, const std::string& why) {
  communicator.abort(why);
  throw Mismatch(Status(StatusCode::mismatch, why));
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
      c10::make_scope_exit([this, joined = uneven_->joined.size()] { leave(joined); });
  enter(options);
  loop();
  // A forward pass without a backward one has left copies in the place of parameters. The others
  // wait for this rank even if putting these back is refused.
  std::exception_ptr refusal;
  try {
    put_parameters_back();
  } catch (const Error&) {
    refusal = std::current_exception();
  }
  follow_others();
  if (refusal != nullptr) std::rethrow_exception(refusal);
  const Rank leader = uneven_->leader();
  for (Joinable* const joined : options.joined) joined->finish(leader);
  broadcast_state(leader);
  for (torch::optim::Optimizer* const optimizer : options.optimizers) {
    broadcast_optimizer(*optimizer, communicator_, leader, options_.timeout);
  }
  for (const StepInBackward& stepping : stepping_) {
    broadcast_optimizer(stepping.optimizer(), communicator_, leader, options_.timeout);
  }
  // If an optimizer that was left out differs between ranks, so do parameters after one step.
  verify_from_ = reducer_->step_count() + 2;
}

void Replica::enter(const UnevenInputsOptions& options) {
  for (Joinable* const joined : options.joined) {
    if (joined == nullptr) refuse("UnevenInputsOptions::joined names a null pointer");
    if (joined->loop_ != nullptr) refuse("UnevenInputsOptions::joined names something twice");
    if (&joined->communicator_ != &communicator_) {
      refuse("UnevenInputsOptions::joined names something of another communicator");
    }
    const auto is_shared_out = [joined](const torch::optim::Optimizer* optimizer) {
      return joined->shares_out(*optimizer);
    };
    if (std::ranges::any_of(options.optimizers, is_shared_out)) {
      refuse(
          "UnevenInputsOptions::optimizers names the optimizer of a ShardedOptimizer, of whose "
          "state each rank has a part: name the ShardedOptimizer in UnevenInputsOptions::joined "
          "only");
    }
    joined->loop_ = uneven_.get();
    joined->number_ = uneven_->joined.size();
    uneven_->joined.push_back(joined);
  }
}

void Replica::leave(std::size_t joined_before) {
  for (; uneven_->joined.size() > joined_before; uneven_->joined.pop_back()) {
    uneven_->joined.back()->loop_ = nullptr;
  }
  uneven_->models.pop_back();
  if (uneven_->models.empty()) loop_of_thread.reset();
  uneven_.reset();
}

// What this rank does when it has no data left.
void Replica::follow_others() {
  while (true) {
    const auto announced = uneven_->listen();
    const std::uint64_t number = announced.number;
    if (announced.phase == reducer::UnevenSteps::Phase::finished) return;
    if (announced.phase == reducer::UnevenSteps::Phase::joined) {
      if (number >= uneven_->joined.size()) {
        refuse_to_follow(
            communicator_,
            "others step what they have named in UnevenInputsOptions::joined, and this rank has "
            "not: name the same on all ranks");
      }
      uneven_->joined[number]->follow(announced.what);
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
  if (reducer_->rebuild()) create_views();
}

// One pass through two models: a rank without data would take part in a step of the first one to
// its end, before it hears of the other.
void Replica::announce_pass() {
  const auto is_open = [](const Replica* replica) { return replica->pass_open_; };
  if (std::ranges::any_of(uneven_->models, is_open)) {
    refuse("inside join() of two models each backward pass must go through one of them only");
  }
  uneven_->announce(reducer::UnevenSteps::Phase::gradients, number_);
}

}  // namespace stretto::ddp

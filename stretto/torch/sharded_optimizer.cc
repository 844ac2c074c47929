// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/sharded_optimizer.h"

#include <algorithm>
#include <span>
#include <sstream>
#include <string>
#include <unordered_set>
#include <utility>

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include "stretto/base/refuse.h"
#include "stretto/torch/optimizer_parts.h"
#include "stretto/torch/parameters.h"
#include "stretto/torch/tensor_bytes.h"
#include "stretto/torch_device/device_allocation.h"
#include "stretto/torch_device/device_buckets.h"

namespace stretto {
namespace {

using torch::optim::Optimizer;
using State = std::unique_ptr<torch::optim::OptimizerParamState>;

// What ranks announce inside join().
constexpr std::uint64_t kStep = 0, kGather = 1;

// Returns what allocates staging memory on the device of the parameters, if the communicator's
// operations reach them there; null if they are exchanged through memory of the host.
std::unique_ptr<BucketMemory> memory_of(const Communicator& communicator,
                                        const std::vector<torch::Tensor>& parameters) {
  const bool are_blocks = std::ranges::all_of(parameters, ddp::is_block);
  if (parameters.empty() || !are_blocks || !are_of(communicator, parameters)) return nullptr;
  return std::make_unique<ddp::CommunicatorBuckets>(parameters.front().device());
}

// An empty state of the kind that the optimizer keeps. A clone() of an existing state would not do:
// it shares the tensors, and reading into it would change both states.
State make_state(const Optimizer& optimizer) {
  namespace optim = torch::optim;
  if (dynamic_cast<const optim::SGD*>(&optimizer)) return std::make_unique<optim::SGDParamState>();
  if (dynamic_cast<const optim::Adam*>(&optimizer))
    return std::make_unique<optim::AdamParamState>();
  if (dynamic_cast<const optim::AdamW*>(&optimizer))
    return std::make_unique<optim::AdamWParamState>();
  if (dynamic_cast<const optim::RMSprop*>(&optimizer))
    return std::make_unique<optim::RMSpropParamState>();
  if (dynamic_cast<const optim::Adagrad*>(&optimizer))
    return std::make_unique<optim::AdagradParamState>();
  refuse(
      "gather_state() makes what SGD, Adam, AdamW, RMSprop and Adagrad keep everyone's; the kind "
      "of state that another optimizer keeps is not known");
}

void write_settings(const Optimizer& optimizer, torch::serialize::OutputArchive& archive) {
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    torch::serialize::OutputArchive of_group(archive.compilation_unit());
    optimizer.param_groups()[i].options().serialize(of_group);
    archive.write("settings" + std::to_string(i), of_group);
  }
}

void read_settings(Optimizer& optimizer, torch::serialize::InputArchive& archive) {
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    torch::serialize::InputArchive of_group;
    archive.read("settings" + std::to_string(i), of_group);
    optimizer.param_groups()[i].options().serialize(of_group);
  }
}

std::string text_of(torch::serialize::OutputArchive& archive) {
  std::ostringstream text;
  archive.save_to(text);
  return text.str();
}

std::string packed_settings(const Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  write_settings(optimizer, archive);
  return text_of(archive);
}

std::string name_of(std::size_t parameter) { return "parameter" + std::to_string(parameter); }

// The state of those of `parameters` that have these indices.
std::string packed(Optimizer& optimizer, const std::vector<torch::Tensor>& parameters,
                   const std::vector<std::size_t>& indices) {
  torch::serialize::OutputArchive archive;
  for (const std::size_t i : indices) {
    const auto found = optimizer.state().find(parameters[i].unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    torch::serialize::OutputArchive of_parameter(archive.compilation_unit());
    found->second->serialize(of_parameter);
    archive.write(name_of(i), of_parameter);
  }
  return text_of(archive);
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(Optimizer& optimizer, Communicator& communicator,
                                   const std::optional<Duration>& timeout)
    : Joinable(communicator),
      optimizer_(optimizer),
      timeout_(timeout),
      parameters_(ddp::parameters_of(optimizer)),
      device_(parameters_.empty() ? torch::kCPU : parameters_.front().device()),
      memory_(memory_of(communicator, parameters_)),
      exchange_(communicator, timeout, reducer::StateExchange::kStagingBytes,
                memory_ != nullptr ? *memory_ : host_buckets()) {
  const Status refusal = ddp::refusal_of([this] {
    ddp::check_steps_in_parts(optimizer_);
    check_parameters();
  });
  ddp::check_same_parameters(communicator, refusal, {"options", "ShardedOptimizer", {}},
                             parameters_, timeout_);
  std::vector<std::size_t> bytes;
  for (const torch::Tensor& parameter : parameters_) bytes.push_back(parameter.nbytes());
  owners_ = reducer::share_out(bytes, communicator.size());
  forget_foreign_state();
}

void ShardedOptimizer::check_parameters() const {
  if (parameters_.empty()) refuse("the optimizer has no parameters to share out");
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& parameter = parameters_[i];
    if (parameter.layout() == torch::kStrided && !parameter.is_meta()) continue;
    refuse(
        "parameter {} of the optimizer is not a dense tensor that has memory, so it cannot be "
        "shared out",
        i);
  }
}

void ShardedOptimizer::forget_foreign_state() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_own(i)) optimizer_.state().erase(parameters_[i].unsafeGetTensorImpl());
  }
}

// Writes and reads the settings once, so that join() fails on all ranks if that does not work: in
// the loop only some ranks write settings, and only some read them.
void ShardedOptimizer::begin() {
  try {
    const std::string settings = packed_settings(optimizer_);
    torch::serialize::InputArchive archive =
        ddp::archive_of(std::as_bytes(std::span(settings)), torch::kCPU);
    read_settings(optimizer_, archive);
  } catch (const c10::Error& error) {
    refuse(
        "inside join() ranks send each other the settings of a ShardedOptimizer's optimizer, and "
        "those of this one's class cannot be written and read: override serialize() of its "
        "OptimizerOptions, "
        "both the one that writes and the one that reads ({})",
        error.what_without_backtrace());
  }
}

std::string ShardedOptimizer::describe(std::uint64_t what) const {
  return fmt::format("{}() of the ShardedOptimizer", what == kStep ? "step" : "gather_state");
}

void ShardedOptimizer::step() {
  announce(kStep);
  step_together();
}

void ShardedOptimizer::follow(std::uint64_t what) {
  if (what == kStep) return step_together();
  gather_together();
}

void ShardedOptimizer::step_together() {
  const std::vector<torch::Tensor> now = ddp::parameters_of(optimizer_);
  bool same = now.size() == parameters_.size();
  for (std::size_t i = 0; same && i < now.size(); ++i) same = now[i].is_same(parameters_[i]);
  if (!same) {
    refuse(
        "the optimizer has got other parameters since ShardedOptimizer was built; call "
        "gather_state() before that, and build another ShardedOptimizer after it");
  }
  forget_foreign_state();
  std::unordered_set<const void*> own;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_own(i)) own.insert(parameters_[i].unsafeGetTensorImpl());
  }
  const auto is_mine = [&](const torch::Tensor& parameter) {
    return own.contains(parameter.unsafeGetTensorImpl());
  };
  try {
    std::vector<torch::Tensor> lent = borrow_gradients();
    const auto give_back = c10::make_scope_exit([&] {
      for (std::size_t i = 0; i < lent.size(); ++i) parameters_[i].mutable_grad() = lent[i];
    });
    ddp::Parts spare;
    ddp::step_part(optimizer_, is_mine, spare);
  } catch (const std::exception& error) {
    communicator().abort("the optimizer has failed: " + ddp::text_of(error));
    throw;
  }
  exchange();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    // So that autograd notices if a graph still needs the old values.
    if (!is_own(i)) parameters_[i].unsafeGetTensorImpl()->bump_version();
  }
}

void ShardedOptimizer::exchange() {
  if (memory_ == nullptr) {
    ddp::TensorBytes bytes(parameters_);
    exchange_.run(bytes.spans(), owners_);
    return bytes.write_back();
  }
  std::vector<ByteSpan> parts;
  for (const torch::Tensor& parameter : parameters_) {
    if (parameter.device() != device_) {
      refuse(
          "a parameter of the optimizer has been moved from {} to {} since ShardedOptimizer was "
          "built; build another one",
          device_.str(), parameter.device().str());
    }
    parts.emplace_back(static_cast<std::byte*>(parameter.data_ptr()), parameter.nbytes());
  }
  exchange_.run(parts, owners_);
}

// The settings, and this rank's gradients of the parameters that `rank` owns.
ByteVector ShardedOptimizer::inputs_of(Rank rank) const {
  torch::serialize::OutputArchive archive;
  write_settings(optimizer_, archive);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& gradient = parameters_[i].grad();
    // Copied, because an archive writes the whole bucket of a gradient that is a view of it.
    if (owners_[i] == rank && gradient.defined()) {
      archive.write(
          "gradient" + std::to_string(i),
          gradient.to(torch::kCPU, gradient.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
    }
  }
  const std::string packed = text_of(archive);
  const auto bytes = std::as_bytes(std::span(packed));
  return {bytes.begin(), bytes.end()};
}

// On a rank without data, replaces its gradients by those of a rank that has data, takes over the
// settings of that rank, and returns its own gradients. Only on ranks with data has the program
// clipped gradients since backward, scheduled a learning rate, or unfrozen a parameter.
std::vector<torch::Tensor> ShardedOptimizer::borrow_gradients() {
  if (loop() == nullptr || loop()->ranks_with_data() == communicator().size()) return {};
  const Rank leader = loop()->leader();
  std::vector<ByteVector> for_ranks(static_cast<std::size_t>(communicator().size()));
  for (std::size_t rank = 0; rank < for_ranks.size(); ++rank) {
    const Rank other(static_cast<std::int32_t>(rank));
    const bool is_sent = communicator().rank() == leader && !loop()->has_data(other);
    if (is_sent) for_ranks[rank] = inputs_of(other);
  }
  const ByteVector own = scatter_bytes(communicator(), for_ranks, leader,
                                       {.limit_bytes = ddp::kAnyLength, .timeout = timeout_});
  if (loop()->has_data(communicator().rank())) return {};
  torch::serialize::InputArchive archive = ddp::archive_of(own, torch::kCPU);
  read_settings(optimizer_, archive);
  std::vector<torch::Tensor> before;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    torch::Tensor gradient;
    if (is_own(i) && archive.try_read("gradient" + std::to_string(i), gradient)) {
      gradient = gradient.to(parameters_[i].device());
    }
    before.push_back(std::exchange(parameters_[i].mutable_grad(), gradient));
  }
  return before;
}

// Copies the settings only: the owner of each parameter has stepped it to the end, and has its
// state.
void ShardedOptimizer::finish(Rank last) {
  std::string text;
  if (communicator().rank() == last) text = packed_settings(optimizer_);
  const ByteVector bytes = ddp::broadcast_text(communicator(), text, last, timeout_);
  if (communicator().rank() == last) return;
  torch::serialize::InputArchive archive = ddp::archive_of(bytes, torch::kCPU);
  read_settings(optimizer_, archive);
}

void ShardedOptimizer::gather_state() {
  announce(kGather);
  gather_together();
}

void ShardedOptimizer::gather_together() {
  (void)make_state(optimizer_);  // So that all ranks refuse alike, even those that only send.
  for (int rank = 0; rank < communicator().size(); ++rank) receive_state_of(Rank(rank));
}

// Copies the state of parameters that `rank` owns to all ranks; called on all of them.
void ShardedOptimizer::receive_state_of(Rank rank) {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (owners_[i] == rank) indices.push_back(i);
  }
  std::string text;
  if (rank == communicator().rank()) text = packed(optimizer_, parameters_, indices);
  const ByteVector bytes = ddp::broadcast_text(communicator(), text, rank, timeout_);
  if (rank == communicator().rank()) return;
  torch::Device device = indices.empty() ? torch::kCPU : parameters_[indices.front()].device();
  torch::serialize::InputArchive archive = ddp::archive_of(bytes, device);
  for (const std::size_t i : indices) {
    if (parameters_[i].device() != device) {
      device = parameters_[i].device();
      archive = ddp::archive_of(bytes, device);
    }
    optimizer_.state().erase(parameters_[i].unsafeGetTensorImpl());
    torch::serialize::InputArchive of_parameter;
    if (!archive.try_read(name_of(i), of_parameter)) continue;  // It has not been stepped yet.
    State state = make_state(optimizer_);
    state->serialize(of_parameter);
    optimizer_.state()[parameters_[i].unsafeGetTensorImpl()] = std::move(state);
  }
}

}  // namespace stretto

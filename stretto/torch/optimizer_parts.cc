// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/optimizer_parts.h"

#include <algorithm>
#include <sstream>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "stretto/base/refuse.h"
#include "stretto/torch/gradient_memory.h"
#include "stretto/torch/hook.h"
#include "stretto/torch/optimizer_state.h"
#include "stretto/torch/parameters.h"

namespace stretto::ddp {
namespace {

// While it lives, the optimizer has only the chosen parameters, and `parts` has all of them.
// Afterwards `parts` has the chosen ones.
class Narrowed {
 public:
  Narrowed(torch::optim::Optimizer& optimizer,
           const std::function<bool(const torch::Tensor&)>& chosen, Parts& parts)
      : optimizer_(optimizer), parts_(parts) {
    parts_.resize(optimizer_.param_groups().size());
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].clear();
      for (const torch::Tensor& parameter : optimizer_.param_groups()[i].params()) {
        if (chosen(parameter)) parts_[i].push_back(parameter);
      }
    }
    exchange();
  }
  Narrowed(const Narrowed&) = delete;
  Narrowed& operator=(const Narrowed&) = delete;
  ~Narrowed() { exchange(); }

 private:
  void exchange() {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      std::swap(optimizer_.param_groups()[i].params(), parts_[i]);
    }
  }

  torch::optim::Optimizer& optimizer_;
  Parts& parts_;
};

// While it lives, an empty tensor replaces each repetition of a parameter. libtorch moves the state
// that it has read to each place in the list, so the repetition would get an empty state, which
// would replace that of the parameter.
class WithoutRepetition {
 public:
  explicit WithoutRepetition(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
    std::unordered_set<const void*> seen;
    for (auto& group : optimizer_.param_groups()) {
      before_.push_back(group.params());
      for (torch::Tensor& parameter : group.params()) {
        if (!seen.insert(parameter.unsafeGetTensorImpl()).second) parameter = empty_;
      }
    }
  }
  WithoutRepetition(const WithoutRepetition&) = delete;
  WithoutRepetition& operator=(const WithoutRepetition&) = delete;
  ~WithoutRepetition() {
    for (std::size_t i = 0; i < before_.size(); ++i) {
      optimizer_.param_groups()[i].params().swap(before_[i]);
    }
    optimizer_.state().erase(empty_.unsafeGetTensorImpl());
  }

 private:
  torch::optim::Optimizer& optimizer_;
  Parts before_;
  const torch::Tensor empty_ = torch::empty({0});
};

// Sorts the pointers.
void assign_pointers(std::vector<const void*>& pointers,
                     const std::vector<torch::Tensor>& parameters) {
  pointers.clear();
  for (const torch::Tensor& parameter : parameters) {
    pointers.push_back(parameter.unsafeGetTensorImpl());
  }
  std::ranges::sort(pointers);
}

bool is_among(const torch::Tensor& parameter, const std::vector<const void*>& ordered) {
  return std::ranges::binary_search(ordered,
                                    static_cast<const void*>(parameter.unsafeGetTensorImpl()));
}

std::vector<torch::Device> devices_of(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Device> devices;
  for (const torch::Tensor& parameter : parameters) {
    if (std::ranges::find(devices, parameter.device()) == devices.end()) {
      devices.push_back(parameter.device());
    }
  }
  if (devices.empty()) devices.push_back(torch::kCPU);  // Settings are loaded all the same.
  return devices;
}

// Calls `load` while the optimizer has no state, and restores its former state if that throws.
template <class Load>
void replace_state(torch::optim::Optimizer& optimizer, Load load) {
  auto before = std::exchange(optimizer.state(), {});
  try {
    load();
  } catch (...) {
    optimizer.state() = std::move(before);
    throw;
  }
}

// libtorch reads a whole archive to one device, so it is read once for each device of parameters.
void load_where_parameters_are(torch::optim::Optimizer& optimizer,
                               std::span<const std::byte> bytes) {
  replace_state(optimizer, [&] {
    std::remove_reference_t<decltype(optimizer.state())> loaded;
    const std::vector<torch::Tensor> parameters = parameters_of(optimizer);
    for (const torch::Device device : devices_of(parameters)) {
      torch::serialize::InputArchive archive = archive_of(bytes, device);
      load_whole(optimizer, archive);
      for (const torch::Tensor& parameter : parameters) {
        const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
        if (parameter.device() != device || found == optimizer.state().end()) continue;
        loaded[found->first] = std::move(found->second);
        optimizer.state().erase(found);
      }
    }
    optimizer.state() = std::move(loaded);
  });
}

}  // namespace

void check_steps_in_parts(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr) return;
  refuse(
      "LBFGS looks at all parameters at once and calls the model again in a step, so it cannot be "
      "stepped in parts");
}

std::vector<torch::Tensor> parameters_of(torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> result;
  for (const auto& group : optimizer.param_groups()) {
    result.insert(result.end(), group.params().begin(), group.params().end());
  }
  return distinct(std::move(result));
}

void load_whole(torch::optim::Optimizer& optimizer, torch::serialize::InputArchive& archive) {
  replace_state(optimizer, [&] {
    const WithoutRepetition each_once(optimizer);
    optimizer.load(archive);
  });
}

// The save() that an optimizer class inherits from libtorch writes nothing.
void check_is_saved(const torch::optim::Optimizer& optimizer) {
  namespace optim = torch::optim;
  const bool has_own_save = is_any_of<optim::SGD, optim::Adam, optim::AdamW, optim::RMSprop,
                                      optim::Adagrad, optim::LBFGS>(optimizer);
  if (has_own_save || optimizer.state().empty()) return;
  std::ostringstream text;
  torch::save(optimizer, text);
  const std::string written = text.str();
  if (!archive_of(std::as_bytes(std::span(written)), torch::kCPU).keys().empty()) return;
  refuse(
      "the optimizer has a state and writes nothing: override save() and load() of "
      "torch::optim::Optimizer in its class, as libtorch's own do, or its state is lost");
}

torch::serialize::InputArchive archive_of(std::span<const std::byte> bytes, torch::Device device) {
  torch::serialize::InputArchive archive;
  archive.load_from(reinterpret_cast<const char*>(bytes.data()), bytes.size(), device);
  return archive;
}

ByteVector broadcast_text(Communicator& communicator, const std::string& text, Rank root,
                          const std::optional<Duration>& timeout) {
  return broadcast_bytes(communicator, std::as_bytes(std::span(text)), root,
                         {.limit_bytes = kAnyLength, .timeout = timeout});
}

void step_part(torch::optim::Optimizer& optimizer,
               const std::function<bool(const torch::Tensor&)>& chosen, Parts& spare) {
  const Narrowed narrowed(optimizer, chosen, spare);
  // The optimizer's state must not lie in a gradient's place: it would stay there for ever, and the
  // reducer may overwrite the places of frozen parameters.
  const GradientMemory::NoLending elsewhere;
  optimizer.step();
}

StepInBackward::StepInBackward(torch::optim::Optimizer& optimizer,
                               const std::vector<torch::Tensor>& parameters)
    : optimizer_(optimizer) {
  check_steps_in_parts(optimizer);
  assign_pointers(own_, parameters);
  check_not_of_others();
}

void StepInBackward::check_not_of_others() const {
  for (const auto& group : optimizer_.param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      if (is_among(parameter, own_) || !GradientHook::exists_on(parameter)) continue;
      refuse(
          "step_in_backward(): a parameter of the optimizer, of shape {}, belongs to another "
          "DistributedDataParallel, or has another hook that waits for its gradient to be "
          "accumulated, and would be stepped with a gradient that is not reduced; give each model "
          "an optimizer of its own, or call optimizer.step() after backward()",
          list_text(parameter.sizes()));
    }
  }
}

void StepInBackward::step(const std::vector<torch::Tensor>& parameters) {
  assign_pointers(now_, parameters);
  stepped_.insert(stepped_.end(), now_.begin(), now_.end());
  step_part(
      optimizer_, [this](const torch::Tensor& parameter) { return is_among(parameter, now_); },
      spare_);
  // SGD writes through data(), which autograd does not notice. With another version it throws if a
  // node still has to read the old values, instead of computing with the new ones.
  for (const auto& stepped : spare_) {
    for (const torch::Tensor& parameter : stepped) parameter.unsafeGetTensorImpl()->bump_version();
  }
}

void StepInBackward::finish() {
  check_not_of_others();
  std::ranges::sort(stepped_);
  step_part(
      optimizer_, [this](const torch::Tensor& parameter) { return !is_among(parameter, stepped_); },
      spare_);
  stepped_.clear();
}

}  // namespace stretto::ddp

namespace stretto {

void broadcast_optimizer(torch::optim::Optimizer& optimizer, Communicator& communicator, Rank root,
                         const std::optional<Duration>& timeout) {
  const bool is_root = communicator.rank() == root;
  const Status refusal =
      is_root ? ddp::refusal_of([&] { ddp::check_is_saved(optimizer); }) : Status();
  std::ostringstream text;  // Stays empty if the root refuses.
  if (is_root && refusal.ok()) torch::save(optimizer, text);
  const ByteVector bytes = ddp::broadcast_text(communicator, text.str(), root, timeout);
  refusal.or_throw();
  if (is_root) return;
  if (bytes.empty())
    refuse("rank {} cannot write the state of its optimizer, and says why", root.value());
  ddp::load_where_parameters_are(optimizer, bytes);
}

}  // namespace stretto

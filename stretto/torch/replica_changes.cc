// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Which parameters of a module are trained, and what happens if the program changes them later.

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/refuse.h"
#include "stretto/communicator/byte_exchange.h"
#include "stretto/torch/devices.h"
#include "stretto/torch/parameters.h"
#include "stretto/torch/replica.h"
#include "stretto/torch/tensor_bytes.h"
#include "stretto/torch_device/gradient_description.h"

namespace stretto::ddp {
namespace {

void check_trainable(const NamedTensor& parameter) {
  const auto& [name, tensor] = parameter;
  if (!tensor.is_leaf()) {
    refuse("parameter '{}' is computed from others; it must be a leaf", name);
  }
  if (const auto dtype = dtype_of_tensor(tensor); !dtype.ok()) {
    dtype.status().with_context(fmt::format("parameter '{}'", name)).or_throw();
  }
}

void check_free(const NamedTensor& parameter) {
  if (!GradientHook::exists_on(parameter.tensor)) return;
  refuse(
      "parameter '{}' already belongs to a DistributedDataParallel, or has another hook that waits "
      "for its gradient to be accumulated; there may be only one at a time, so that one must end "
      "first",
      parameter.name);
}

}  // namespace

void Replica::look_at_parameters() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& tensor = parameters_[i].tensor;
    // A parameter that will be refused, such as a sparse one, may have no storage.
    looks_[i].data = tensor.has_storage() ? tensor.const_data_ptr() : nullptr;
    looks_[i].requires_grad = parameters_[i].tensor.requires_grad();
  }
}

// Chooses by requires_grad when parameters were last looked at: all ranks have agreed on it, or
// will in this step. A parameter that has been trained once, here or in the job whose state names
// it in `also`, stays chosen even if it is frozen: some programs freeze a part every other step.
// Frozen parameters with sparse gradients need not stay, since these have no buckets.
Replica::Chosen Replica::choose_trained(const std::vector<std::string>& also) const {
  const std::vector<std::string> sparse = sparse_names();
  Chosen chosen;
  chosen.gradients.assign(parameters_.size(), -1);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const NamedTensor& parameter = parameters_[i];
    const bool was_trained = looks_[i].gradient >= 0 || contains(also, parameter.name);
    if (!looks_[i].requires_grad && !was_trained) continue;
    if (contains(sparse, parameter.name)) {
      chosen.sparse.push_back(parameter);
      continue;
    }
    chosen.gradients[i] = static_cast<std::ptrdiff_t>(chosen.trained.size());
    chosen.trained.push_back(parameter);
  }
  return chosen;
}

// Whether the present reducer has exactly the gradients of `chosen`.
bool Replica::fits_reducer(const Chosen& chosen) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (chosen.gradients[i] != looks_[i].gradient) return false;
    if (looks_[i].gradient >= 0 && is_outgrown(i)) return false;
  }
  return true;
}

void Replica::adopt(Chosen chosen) {
  trained_ = std::move(chosen.trained);
  sparse_ = std::move(chosen.sparse);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    looks_[i].gradient = chosen.gradients[i];
    looks_[i].dtype = parameters_[i].tensor.scalar_type();
  }
}

void Replica::check_tensors() const {
  if (trained_.empty() && sparse_.empty()) {
    refuse("the module has no parameter that requires grad; there is nothing to keep equal");
  }
  for (const auto* list : {&parameters_, &buffers_}) {
    for (const auto& [name, tensor] : *list) {
      if (tensor.layout() != torch::kStrided) {
        refuse("'{}' is not a dense tensor; sparse parameters are not supported", name);
      }
      if (tensor.is_meta()) refuse("'{}' is on meta, which has no memory; give it some", name);
    }
  }
  if (precision_.is_on()) check_on_cpu(parameters_, "mixed_precision.parameter_dtype");
  check_sparse(sparse_);
  const auto parameters = module_->named_parameters(), buffers = module_->named_buffers();
  const auto check_names = [&](const char* option, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      if (parameters.contains(name)) continue;
      refuse("the option {} names '{}', which is no parameter of the module", option, name);
    }
  };
  check_names("delayed_parameters", options_.delayed_parameters);
  check_names("sparse_parameters", options_.sparse_parameters);
  for (const std::string& name : options_.parameters_to_ignore) {
    if (!parameters.contains(name) && !buffers.contains(name)) {
      refuse(
          "the option parameters_to_ignore names '{}', which is neither a parameter nor a buffer "
          "of the module",
          name);
    }
  }
  for (const auto* list : {&trained_, &sparse_}) {
    for (const NamedTensor& parameter : *list) {
      check_trainable(parameter);
      check_free(parameter);
    }
  }
}

void Replica::check_sparse(const std::vector<NamedTensor>& parameters) const {
  check_sparse_gradients(parameters);
  if (!precision_.is_on() || parameters.empty()) return;
  refuse("mixed_precision.parameter_dtype does not work with sparse gradients: '{}' has them",
         parameters.front().name);
}

// Refuses parameters of another replica. This alone is thrown before the step, because a backward
// pass would begin a step of the other replica, too.
void Replica::check_not_of_others() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool is_new = looks_[i].gradient < 0 && !looks_[i].requires_grad;
    if (is_new && parameters_[i].tensor.requires_grad()) check_free(parameters_[i]);
  }
}

// Checks parameters that are to be trained from this step on, or in another type, as
// check_tensors() does at construction.
void Replica::check_outgrown() const {
  const std::vector<std::string> sparse = sparse_names();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const NamedTensor& parameter = parameters_[i];
    if (!parameter.tensor.requires_grad() || !is_outgrown(i)) continue;
    check_trainable(parameter);
    if (contains(sparse, parameter.name)) check_sparse({parameter});
  }
}

// Whether a parameter has changed so that its gradient does not fit its place, or needs a place
// that it does not have.
bool Replica::is_outgrown(std::size_t index) const {
  const torch::Tensor& tensor = parameters_[index].tensor;
  const Look& look = looks_[index];
  if (tensor.scalar_type() != look.dtype) return true;
  if (look.gradient < 0) return tensor.requires_grad() != look.requires_grad;
  const torch::Tensor& view = progress_[static_cast<std::size_t>(look.gradient)].view;
  if (tensor.sizes() != view.sizes()) return true;
  if (tensor.strides() == view.strides()) return false;
  // See view_like(), which makes a gradient contiguous if its parameter has gaps.
  return tensor.is_non_overlapping_and_dense() || !view.is_contiguous();
}

// Programs unfreeze and freeze parameters, load checkpoints and change types after they have built
// this object. All ranks must do so at the same place, and find out at the end of the step whether
// they have. Until then each rank communicates as if nothing had changed.
void Replica::notice_changes() {
  bool replaced = false;
  outgrown_ = has_converted_buffers();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& tensor = parameters_[i].tensor;
    Look& look = looks_[i];
    const void* const data = tensor.const_data_ptr();
    const bool requires_grad = tensor.requires_grad();
    const bool same_data = data == look.data && tensor.scalar_type() == look.dtype;
    const bool outgrown = is_outgrown(i);
    if (!outgrown) {
      look.data = data;
      look.requires_grad = requires_grad;
    }
    look.last_requires_grad = requires_grad;
    replaced = replaced || !same_data;
    outgrown_ = outgrown_ || outgrown;
    if (look.gradient < 0) continue;
    const auto gradient = static_cast<std::size_t>(look.gradient);
    Progress& progress = progress_[gradient];
    progress.outgrown = outgrown;
    // If passes of ranks may differ, all ranks expect the gradient, even if only some of them have
    // added to it.
    progress.owed = !requires_grad && accumulated_ && progress.awaited &&
                    (passes_may_differ() || (progress.touched && tensor.grad().defined()));
    progress.awaited = requires_grad || progress.owed;
    // If the program keeps a tensor in the place, it may write to it until the end of the pass.
    reducer_->set_frozen(gradient, outgrown || !progress.awaited,
                         /*in_use=*/gradient_memory_.is_lent(gradient));
    if (outgrown) leave_bucket(gradient);
  }
  is_frozen_everywhere_ = is_frozen_everywhere_ && all_are_frozen();
  owes_verification_ = owes_verification_ || replaced;
  if (replaced) look_at_devices();
  if (owes_verification_) reducer_->request(Reducer::Request::verification);
  refusal_ = Status();
  if (!outgrown_) return reducer_->withdraw(Reducer::Request::other_gradients);
  check_not_of_others();
  refusal_ = refusal_of([this] { check_outgrown(); });
  reducer_->request(Reducer::Request::other_gradients);
}

// Moves a gradient out of its bucket: autograd adds to a gradient in place, perhaps while its
// bucket is being reduced.
void Replica::leave_bucket(std::size_t index) {
  torch::Tensor& gradient = trained_[index].tensor.mutable_grad();
  if (!gradient.defined() || gradient.layout() != torch::kStrided) return;
  if (gradient.const_data_ptr() == progress_[index].view_data) gradient = gradient.clone();
}

// For two cases in which notice_changes() cannot run. First, a backward pass without a forward() of
// this object since the last step: a second pass through the same graph, or one after a call of the
// module itself. Second, a forward pass while parameters hold copies: to look at the parameters it
// would have to put them back, and autograd would lose what earlier forward passes have recorded.
void Replica::refuse_unseen_changes() {
  if (!seen_ever_ && synchronizes_buffers()) {
    refuse(
        "backward() without forward() of DistributedDataParallel: each rank would keep buffers of "
        "its own. Call ddp.forward(), not that of the module (ddp->forward()), or set "
        "broadcast_buffers = false");
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& tensor = parameters_[i].tensor;
    const Look& look = looks_[i];
    const bool same_data = precision_.is_on() || tensor.const_data_ptr() == look.data;
    const bool known = precision_.entered() ? look.last_requires_grad : look.requires_grad;
    if (same_data && tensor.requires_grad() == known) continue;
    if (precision_.entered()) {
      precision_.leave();
      refuse(
          "parameter '{}' was frozen or unfrozen behind a forward pass that no backward pass has "
          "followed, when parameters were copies in mixed_precision.parameter_dtype. Evaluate "
          "under torch::NoGradGuard",
          parameters_[i].name);
    }
    refuse(
        "parameter '{}' was frozen, unfrozen or replaced since the last forward pass of "
        "DistributedDataParallel. Call ddp.forward() after that, not forward() of the module "
        "(ddp->forward())",
        parameters_[i].name);
  }
}

bool Replica::has_converted_buffers() const {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (buffers_[i].tensor.scalar_type() != buffer_dtypes_[i]) return true;
  }
  return false;
}

// Modules that were added or replaced since this object was built have parameters without hooks. To
// look for these takes about a microsecond for each parameter, so not every step does it.
void Replica::look_for_new_parameters() {
  std::unordered_set<const void*> known;
  for (const NamedTensor& parameter : parameters_) {
    known.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  has_new_parameters_ = false;
  for (const auto& item : module_->named_parameters()) {
    const torch::Tensor& tensor = item.value();
    if (!tensor.defined() || !tensor.requires_grad()) continue;
    if (known.contains(tensor.unsafeGetTensorImpl())) continue;
    if (contains(options_.parameters_to_ignore, item.key())) continue;
    has_new_parameters_ = true;
    reducer_->request(Reducer::Request::other_gradients);
    if (!refusal_.ok()) return;
    refusal_ = status_of(StatusCode::invalid_argument,
                         "parameter '{}' is new: a module was added or replaced after "
                         "DistributedDataParallel was built, which does not reduce its gradients. "
                         "Fix: build it anew on all ranks, and the optimizer as well",
                         item.key());
    return;
  }
}

// Throws on all ranks if one of them has a refusal.
void Replica::agree_on_refusal() {
  const std::string own(refusal_.message());
  const auto texts =
      all_gather_bytes(communicator_, std::as_bytes(std::span(own)), {.timeout = options_.timeout});
  refusal_.or_throw();
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    const auto* const first = reinterpret_cast<const char*>(texts[rank].data());
    throw InvalidArgument(Status(StatusCode::invalid_argument,
                                 "rank " + std::to_string(rank) + " cannot train its model: " +
                                     std::string(first, texts[rank].size()),
                                 Rank(static_cast<std::int32_t>(rank))));
  }
}

// At the end of a step in which the parameters of all ranks have outgrown the reducer alike:
// reduces the gradients for which it has no place, and builds another reducer if that is needed.
void Replica::build_anew(bool with_data, double scale) {
  const std::vector<std::string> sparse = sparse_names();
  std::vector<NamedTensor> late;
  std::vector<bool> touched;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const NamedTensor& parameter = parameters_[i];
    const std::ptrdiff_t gradient = looks_[i].gradient;  // -1: it has no hook yet.
    const Progress* const progress =
        gradient < 0 ? nullptr : &progress_[static_cast<std::size_t>(gradient)];
    const bool has_gradient =
        parameter.tensor.requires_grad() || (progress != nullptr && progress->owed);
    if (!has_gradient || !is_outgrown(i) || contains(sparse, parameter.name)) continue;
    late.push_back(parameter);
    touched.push_back(parameter.tensor.grad().defined() &&
                      (progress == nullptr || progress->touched));
  }
  Status refused;
  try {
    if (!late.empty()) reduce_late(late, touched, with_data, scale);
  } catch (const InvalidArgument& error) {
    refused = error.status();  // The same on all ranks. The next step may follow.
  }
  // Passes inside no_sync() may have added to these gradients before they were frozen.
  std::vector<NamedTensor> frozen;
  for (const NamedTensor& parameter : sparse_) {
    if (!parameter.tensor.requires_grad()) frozen.push_back(parameter);
  }
  reduce_sparse_gradients(communicator_, frozen, with_data, scale, options_.timeout);
  look_at_parameters();
  reduce_from_now_on(choose_trained());
  refused.or_throw();
}

void Replica::reduce_late(std::vector<NamedTensor>& late, const std::vector<bool>& touched,
                          bool with_data, double scale) {
  const torch::NoGradGuard no_grad;
  const std::unique_ptr<Reducer> made = make_reducer(late, reducer_options());
  Reducer& reducer = *made;
  std::vector<torch::Tensor> sums;
  for (std::size_t i = 0; i < late.size(); ++i) {
    const torch::Tensor& parameter = late[i].tensor;
    sums.push_back(view_like(parameter, reducer.gradient(i), location_.device));
    if (!with_data) continue;
    if (parameter.grad().defined()) sums[i].copy_(parameter.grad());
    if (touched[i]) reducer.mark_ready(i);
  }
  if (with_data) {
    reducer.finalize();
  } else {
    reducer.finalize_without_data();
  }
  for (std::size_t i = 0; i < late.size(); ++i) {
    if (!with_data || !reducer.was_used(i)) continue;
    if (scale != 1) sums[i].mul_(scale);
    late[i].tensor.mutable_grad() = sums[i].to(late[i].tensor.device());
  }
}

// Builds another reducer, together with the other ranks, if that is needed. This object changes
// only after that has succeeded.
void Replica::reduce_from_now_on(Chosen chosen) {
  std::unique_ptr<Reducer> reducer;
  if (!fits_reducer(chosen)) reducer = make_reducer(chosen.trained, options_of_all());
  adopt(std::move(chosen));
  connect(std::move(reducer));
  same_graph_ = false;
}

}  // namespace stretto::ddp

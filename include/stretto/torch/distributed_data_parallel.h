// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "stretto/communicator/communicator.h"
#include "stretto/reducer/reducer.h"
#include "stretto/torch/as_module.h"
#include "stretto/torch/options.h"
#include "stretto/torch/replica.h"
#include "stretto/torch/tensors.h"
#include "stretto/torch/tensors_in.h"

namespace stretto {

// Trains copies of a module on several ranks as one: every rank runs forward and backward on its
// own part of the batch, and when backward() returns, each parameter's grad() is the mean over all
// ranks, the same bits everywhere. Gradients are reduced while backward still runs, bucket by
// bucket.
//
//   stretto::DistributedDataParallel ddp(model, *communicator);
//   auto loss = torch::nll_loss(ddp.forward(data), target);
//   optimizer.zero_grad();
//   loss.backward();
//   optimizer.step();
//
// `Module` is deduced from a module holder (TORCH_MODULE), a shared pointer or a reference. In the
// type of a variable, name the module or its holder: DistributedDataParallel<Net>. All parameters
// and buffers are dense; parameters are on the CPU or on other devices (docs/gpu.md). On the CPU,
// grad() of each parameter is a view of registered memory that other ranks read and write during
// backward(). Between passes a program may change grad() in place, clear it by either kind of
// zero_grad(), or replace it. Gradients may be sparse (option sparse_parameters); ranks exchange
// sparse gradients at the end of backward.
//
// All ranks must construct it, and run its forward passes in training mode and its backward passes
// in the same order. If a parameter gets no gradient on some rank, backward() throws on all ranks
// at its end and names the parameter (see the option find_unused_parameters); training may go on.
// Other failures in forward() and backward() are thrown as the exceptions of base/error.h; the
// gradients are then undefined and the parameters unchanged.
//
// A program may freeze, unfreeze, load (torch::load) and convert (to(dtype)) parameters between
// backward and the next forward pass, on all ranks alike. If ranks differ in that, the next
// backward() throws Mismatch on all ranks and names a parameter; once they are alike again,
// training may go on. Parameters and buffers registered after construction are not kept equal.
//
// Copies of a DistributedDataParallel refer to the same model and state, like libtorch's module
// holders. So a torch::nn::Sequential can hold one, too: `model->push_back(ddp)`.
//
// Threads: one at a time, not always the same. The communicator must outlive it.
template <TorchModuleOrHolder Module>
class DistributedDataParallel {
 public:
  // Verifies that all ranks have the same model (number, names, shapes, dtypes, strides and
  // requires_grad of parameters and buffers) and the same options, then copies rank 0's values to
  // all ranks (option broadcast_parameters). Collective: blocks until all ranks have called. Throws
  // Mismatch on all ranks with the first difference; InvalidArgument for a module that cannot be
  // trained this way.
  DistributedDataParallel(std::shared_ptr<Module> module, Communicator& communicator,
                          DistributedDataParallelOptions options = {})
      : module_(std::move(module)),
        replica_(std::make_shared<ddp::Replica>(module_, communicator, std::move(options))) {}
  DistributedDataParallel(const torch::nn::ModuleHolder<Module>& module, Communicator& communicator,
                          DistributedDataParallelOptions options = {})
      : DistributedDataParallel(module.ptr(), communicator, std::move(options)) {}
  // `module` must outlive this object.
  DistributedDataParallel(Module& module, Communicator& communicator,
                          DistributedDataParallelOptions options = {}) requires TorchModule<Module>
      : DistributedDataParallel(std::shared_ptr<Module>(std::shared_ptr<void>(), &module),
                                communicator, std::move(options)) {}

  // Runs the module's forward(). In training mode it first copies rank 0's buffers to all ranks (if
  // there are buffers and broadcast_buffers is on), or runs the option buffer_hook before or after
  // the module's forward(), and blocks for that. Finds the tensors in the module's result if this
  // is a tensor, a container, a pair or tuple, or an optional of these.
  template <class... Arguments>
  decltype(auto) forward(Arguments&&... arguments) {
    const ddp::ForwardScope scope = replica_->before_forward();
    decltype(auto) output = call(std::forward<Arguments>(arguments)...);
    replica_->end_of_forward();
    ddp::for_each_tensor(std::as_const(output), [this](const torch::Tensor& tensor) {
      if (tensor.defined()) replica_->after_forward(tensor);
    });
    return static_cast<decltype(output)>(output);
  }
  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  // For gradient accumulation: `{ auto guard = ddp.no_sync(); loss.backward(); }`. The guard must
  // live while backward() runs. The next backward pass without a guard reduces the accumulated sum.
  NoSync no_sync() { return NoSync(*replica_); }

  // Says that the following steps belong to `epoch`. Call it on all ranks when an epoch begins,
  // like set_epoch() of a sampler. Outside of join() it makes backward() detect that ranks have
  // different numbers of batches: in the first step that not all ranks have, all ranks throw
  // Mismatch; they would average batches of different epochs otherwise. Sends nothing.
  void set_epoch(std::uint64_t epoch) { replica_->set_epoch(epoch); }

  // From now on each backward pass that reduces gradients also steps `optimizer`; do not call
  // optimizer.step(). A bucket's parameters are stepped as soon as it is reduced, while backward
  // goes on; parameters that this rank has not used or that are not reduced, and inside join() all,
  // at the end of the pass. The bits are those of optimizer.step() after backward(). Gradients
  // cannot be changed (clipped, say) before. Throws InvalidArgument for LBFGS, parameters off the
  // CPU or of another DistributedDataParallel, and with the option mixed_precision.parameter_dtype.
  // Another call adds another optimizer, for other parameters.
  //
  // If backward() throws, some parameters may have been stepped, and not the same on all ranks. If
  // training can go on, the next step compares the replicas, and throws Mismatch if they differ.
  //
  // Call it between passes, on all ranks alike; not collective. `optimizer` must live until the
  // last pass, or until step_after_backward(), which forgets all optimizers.
  void step_in_backward(torch::optim::Optimizer& optimizer) {
    replica_->step_in_backward(&optimizer);
  }
  void step_after_backward() { replica_->step_in_backward(nullptr); }

  // Runs a training loop in which ranks may run different numbers of steps:
  // `ddp.join([&] { for (auto& batch : *loader) ... })`. A rank whose loop has ended takes part in
  // the steps of ranks that still have data, and contributes nothing, until no rank has data. Then
  // all get the parameters, buffers and gradients of a rank that ran the last step, and the state
  // of optimizers that `options` names. Collective, blocks. Each step costs one small operation
  // more. What `loop` throws comes out at once; other ranks learn of it when the communicator is
  // destroyed. For several models of one communicator, each with its own backward pass, nest calls:
  // `one.join([&] { two.join(loop); })`. `options` must name all else that communicates, or a rank
  // that cannot follow throws Mismatch, the others Mismatch or Aborted. Refuses SyncBatchNorm.
  void join(const std::function<void()>& loop, const UnevenInputsOptions& options = {}) {
    replica_->join(loop, options);
  }

  const std::shared_ptr<Module>& module() const { return module_; }
  // Access to the module, as by a module holder. Only do not call its forward(): call forward() of
  // this class.
  Module* operator->() const { return module_.get(); }
  Module& operator*() const { return *module_; }
  // For containers of modules, which see the module's parameters with the prefix "module.". If its
  // forward() is a template or overloaded, it must take and return one tensor there.
  operator torch::nn::AnyModule() const {  // NOLINT: so that push_back(ddp) works.
    if constexpr (requires { &Module::forward; }) {
      return ddp::any_module_of(*this, &Module::forward);
    } else {
      return ddp::any_module_of(*this,
                                static_cast<torch::Tensor (Module::*)(torch::Tensor)>(nullptr));
    }
  }

  std::vector<torch::Tensor> parameters() const { return module_->parameters(); }
  auto named_parameters() const { return module_->named_parameters(); }
  std::vector<torch::Tensor> buffers() const { return module_->buffers(); }
  auto named_buffers() const { return module_->named_buffers(); }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }
  bool is_training() const { return module_->is_training(); }
  void zero_grad(bool set_to_none = true) { module_->zero_grad(set_to_none); }
  // Call it on all ranks, between backward and forward.
  template <class... Arguments>
  void to(Arguments&&... arguments) {
    replica_->put_parameters_back();
    module_->to(std::forward<Arguments>(arguments)...);
  }

  // For torch::save(ddp, path) and torch::load(ddp, path). They save and load the module alone, so
  // a program with one process can read the file. With mixed precision, call them between backward
  // and forward, or if no backward pass follows. Load on all ranks: the next backward verifies it.
  void save(torch::serialize::OutputArchive& archive) const {
    replica_->put_parameters_back();
    module_->save(archive);
  }
  void load(torch::serialize::InputArchive& archive) {
    replica_->put_parameters_back();
    module_->load(archive);
  }

  // Throws Mismatch on all ranks unless each parameter has the same bits on all ranks; the message
  // names the first that differs, and the ranks. Collective, blocks.
  void verify_replicas() { replica_->verify_replicas(); }
  // Saves all that this rank needs to go on training with the same bits: the module, `optimizers`,
  // the order of buckets, and the states of the communication hook and of torch's random number
  // generators. Replaces the file `path` + ".rank3" (for rank 3) as a whole. Not collective; call
  // it on all ranks after the same optimizer step. Throws SystemError if the file cannot be
  // written, InvalidArgument if parameters are on several devices.
  template <std::derived_from<torch::optim::Optimizer>... Optimizers>
  void save_state(const std::string& path, const Optimizers&... optimizers) const {
    replica_->save_state(path, {&optimizers...});
  }
  // Loads what save_state() has written. Collective, blocks; call it before a forward pass, with
  // the optimizers in the same order. The next backward pass compares the parameters. Throws
  // InvalidArgument on all ranks if the file of one was not written by that rank, in a job of this
  // size, with the same hook and number of optimizers. What was loaded until then stays.
  template <std::derived_from<torch::optim::Optimizer>... Optimizers>
  void load_state(const std::string& path, Optimizers&... optimizers) {
    replica_->load_state(path, {&optimizers...});
  }

  // What PyTorch's DistributedDataParallel logs, under the same keys.
  LoggingData logging_data() const { return replica_->logging_data(); }

  // One line about ranks and gradients, one about options, and the module.
  friend std::ostream& operator<<(std::ostream& stream, const DistributedDataParallel& ddp) {
    ddp.replica_->print(stream);
    return stream;
  }

  // A hash of all parameters of this rank, equal on ranks whose parameters have the same bits.
  std::uint64_t parameter_hash() const { return replica_->parameter_hash(); }

  // What the last backward pass that was not inside no_sync() cost.
  const StepStatistics& last_step() const { return replica_->last_step(); }
  // What compressing the gradients of that pass cost, and how much of them was sent; null unless
  // the option codec or a CompressedReduction compresses them.
  const CompressionStatistics* last_compression() const { return replica_->last_compression(); }
  // Which gradients travel together; indices are those of trained_parameters().
  const reducer::BucketPlan& bucket_plan() const { return replica_->bucket_plan(); }
  // The parameters whose dense gradients are reduced, without repetition, in the module's order.
  const std::vector<ddp::NamedTensor>& trained_parameters() const { return replica_->trained(); }

 private:
  // Converts an argument of forward() as the option mixed_precision says.
  template <class Argument>
  decltype(auto) cast(Argument&& argument) const {
    using Type = std::remove_cvref_t<Argument>;
    if constexpr (ddp::owns_tensors<Type>()) {
      Type result(std::forward<Argument>(argument));
      ddp::for_each_tensor(
          result, [this](torch::Tensor& tensor) { tensor = replica_->cast_input(tensor); });
      return result;
    } else {
      return static_cast<Argument&&>(argument);
    }
  }
  template <class... Arguments>
  decltype(auto) call_as_is(Arguments&&... arguments) const {
    return module_->forward(std::forward<Arguments>(arguments)...);
  }
  // Copies no argument unless it has to be converted.
  template <class... Arguments>
  decltype(auto) call(Arguments&&... arguments) const {
    if constexpr (requires { module_->forward(cast(std::forward<Arguments>(arguments))...); }) {
      using Cast = decltype(module_->forward(cast(std::forward<Arguments>(arguments))...));
      if constexpr (requires {
                      requires std::is_same_v<Cast, decltype(module_->forward(
                                                        std::forward<Arguments>(arguments)...))>;
                    }) {
        if (!replica_->casts_inputs()) return call_as_is(std::forward<Arguments>(arguments)...);
      }
      return module_->forward(cast(std::forward<Arguments>(arguments))...);
    } else {
      return call_as_is(std::forward<Arguments>(arguments)...);
    }
  }

  std::shared_ptr<Module> module_;
  std::shared_ptr<ddp::Replica> replica_;
};

// For a module holder: the same as for its module, to and from which it converts.
template <TorchModuleHolder Holder>
class DistributedDataParallel<Holder>
    : public DistributedDataParallel<typename Holder::ContainedType> {
  using OfModule = DistributedDataParallel<typename Holder::ContainedType>;

 public:
  using OfModule::OfModule;
  DistributedDataParallel(OfModule other) : OfModule(std::move(other)) {}  // NOLINT: the same one.
};

template <TorchModuleHolder Holder>
DistributedDataParallel(Holder, Communicator&, DistributedDataParallelOptions = {})
    -> DistributedDataParallel<Holder>;
template <class Module>
DistributedDataParallel(
    Module, Communicator&,
    ddp::AFieldIsMisspeltWriteDistributedDataParallelOptionsBeforeTheBraceToSeeWhich)
    -> DistributedDataParallel<Module>;

template <TorchModuleOrHolder Module>
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const DistributedDataParallel<Module>& ddp) {
  ddp.save(archive);
  return archive;
}
template <TorchModuleOrHolder Module>
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           DistributedDataParallel<Module>& ddp) {
  ddp.load(archive);
  return archive;
}

}  // namespace stretto

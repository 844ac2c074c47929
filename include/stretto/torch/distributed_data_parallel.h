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
// `Module` is deduced from a module holder (TORCH_MODULE), a shared pointer or a reference; who
// writes it, as for a member, may name the module or its holder: DistributedDataParallel<Net>. All
// parameters and buffers are dense; parameters are on the CPU, or on other devices (docs/gpu.md).
// On the CPU, grad() of each parameter is a view of registered memory that other ranks read and
// write during backward(). It may be changed in place, cleared by zero_grad() of either kind, or
// replaced between passes. Gradients may be sparse (see the option
// sparse_parameters): then they are exchanged at the end of backward.
//
// All ranks must build it, run forward passes in training mode and backward passes in the same
// order. A parameter that gets no gradient on some rank is an error, which names it, at the end of
// that backward pass on all ranks (see the option find_unused_parameters); the next step may
// follow. Other failures come out of forward() and backward() as the exceptions of base/error.h;
// the gradients are then undefined, the parameters are not changed.
//
// Parameters may be frozen and unfrozen, loaded (torch::load) and converted (to(dtype)) at any
// time between backward and the next forward pass, on all ranks alike. If that was not so, the next
// backward() throws Mismatch on all ranks, with the name; when it has been made good, the next step
// may follow. Parameters and buffers that are registered after construction are not known.
//
// Copies of a DistributedDataParallel are the same one, as with modules of libtorch. So it may be a
// part of a torch::nn::Sequential, too: `model->push_back(ddp)`.
//
// Threads: one thread at a time, which may change. The communicator must outlive it.
template <TorchModuleOrHolder Module>
class DistributedDataParallel {
 public:
  // Verifies that all ranks have the same model (number, names, shapes, dtypes, strides and
  // requires_grad of parameters and buffers) and the same options, then makes rank 0's values
  // everyone's. Collective: blocks until all ranks have called. Throws Mismatch on all ranks with
  // the first difference; InvalidArgument for a module that cannot be trained this way.
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

  // The module's forward(). In training mode it first makes rank 0's buffers everyone's (if there
  // are buffers and the option is on), or does what the option buffer_hook says, before or after
  // the module's, and blocks for that. Tensors are found in what it returns if
  // that is a tensor, a container, a pair or tuple, or an optional of such.
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

  // For gradient accumulation: `{ auto guard = ddp.no_sync(); loss.backward(); }`. The next
  // backward pass outside reduces the sum of what has been accumulated. Counts when backward()
  // runs.
  NoSync no_sync() { return NoSync(*replica_); }

  // Says that the steps that follow belong to `epoch`: to be called on all ranks where an epoch
  // begins, like set_epoch() of a sampler. If ranks have different numbers of batches then, and
  // join() does not run the loop, backward() throws Mismatch on all of them in the first step that
  // not all have; else batches of different epochs would be averaged. Sends nothing.
  void set_epoch(std::uint64_t epoch) { replica_->set_epoch(epoch); }

  // From now on each backward pass that reduces gradients also steps `optimizer`: a bucket's
  // parameters as soon as it is reduced, while backward goes on, and at the end of the pass those
  // that this rank has not used, or whose gradients are not reduced. Bit by bit what
  // optimizer.step() after backward() does, which is not to be called then. Gradients cannot be
  // changed in between (clipped, say). For optimizers that treat parameters one by one:
  // InvalidArgument refuses LBFGS, and parameters of another DistributedDataParallel. Inside join()
  // all is stepped at the end of the pass. A second optimizer is added, for other parameters.
  //
  // If backward() throws, some parameters may have been stepped, and not the same on all ranks. If
  // the next step can follow at all, it verifies the replicas, and throws Mismatch if they differ.
  //
  // Not collective, between passes, on all ranks alike. `optimizer` must live until the last pass,
  // or until step_after_backward(), which holds for all of them.
  void step_in_backward(torch::optim::Optimizer& optimizer) {
    replica_->step_in_backward(&optimizer);
  }
  void step_after_backward() { replica_->step_in_backward(nullptr); }

  // Runs a training loop of which ranks may run different numbers of steps:
  // `ddp.join([&] { for (auto& batch : *loader) ... })`. A rank whose loop has ended takes part in
  // the steps of those that still have data, contributing nothing, until no rank has any; then all
  // get the parameters, buffers and gradients of the last, and the state of optimizers that the
  // options name. Collective, blocks. Each step costs one more small operation. What `loop` throws
  // comes out at once; other ranks are told when the communicator is destroyed. Where the loop
  // trains several models of one communicator, by a backward pass each, calls are nested:
  // `one.join([&] { two.join(loop); })`. What else communicates must be named in the options: else
  // a rank that cannot follow throws Mismatch, the others that or Aborted. No SyncBatchNorm.
  void join(const std::function<void()>& loop, const UnevenInputsOptions& options = {}) {
    replica_->join(loop, options);
  }

  const std::shared_ptr<Module>& module() const { return module_; }
  // What programs do with a module, they do with this: calls of the module itself, but for
  // forward(), which must be that of this class.
  Module* operator->() const { return module_.get(); }
  Module& operator*() const { return *module_; }
  // For containers of modules: its parameters are those of the module, behind "module.". Where the
  // module's forward() is a template or overloaded, it takes and returns one tensor there.
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
  // All ranks call it, between backward and forward.
  template <class... Arguments>
  void to(Arguments&&... arguments) {
    replica_->put_parameters_back();
    module_->to(std::forward<Arguments>(arguments)...);
  }

  // What torch::save(ddp, path) and torch::load(ddp, path) call: the module's, so that a program
  // with one process reads them, too. With mixed precision, between backward and forward, or where
  // no backward pass is to follow. Load on all ranks; the next backward pass verifies that.
  void save(torch::serialize::OutputArchive& archive) const {
    replica_->put_parameters_back();
    module_->save(archive);
  }
  void load(torch::serialize::InputArchive& archive) {
    replica_->put_parameters_back();
    module_->load(archive);
  }

  // Throws Mismatch, on all ranks, unless all parameters have the same bits everywhere; it names
  // the first that differs, and where. Collective, blocks.
  void verify_replicas() { replica_->verify_replicas(); }
  // Everything that this rank needs to go on training bit by bit from here: the module, the
  // optimizers, the buckets, what the communication hook remembers and the states of torch's
  // generators, in the file `path` + ".rank3" (for rank 3), which is replaced as a whole. Not
  // collective; call it on all ranks after the same optimizer step. Throws SystemError if it cannot
  // be written, InvalidArgument if parameters are on several devices.
  template <std::derived_from<torch::optim::Optimizer>... Optimizers>
  void save_state(const std::string& path, const Optimizers&... optimizers) const {
    replica_->save_state(path, {&optimizers...});
  }
  // Takes over what save_state() has written. Collective, blocks; by as many ranks as then, before
  // a forward pass; the next backward pass compares the parameters. Throws InvalidArgument, on all
  // ranks, if the file of one is not that of this rank in a job of this size with the same hook and
  // as many optimizers, given in the same order; what has been loaded until then stays.
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
  // Arguments as the option mixed_precision wants them.
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

// Of a holder: the same as of its module, and made of one.
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

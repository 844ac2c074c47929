// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/dtype.h"
#include "stretto/reducer/bucket_plan.h"
#include "stretto/reducer/communication_hook.h"
#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/divided_reduction.h"

namespace torch::optim {
class Optimizer;
}

namespace stretto {

class BufferHook;  // torch/buffer_hook.h
class Joinable;    // torch/joinable.h

// Types in which a model computes and its gradients travel, other than that of its parameters
// (f32), which the optimizer goes on to see: as PyTorch's MixedPrecision.
struct MixedPrecision {
  // From a forward pass to the end of its backward pass, floating-point parameters are copies in
  // this type: f16, bf16, f32 or f64. So the output and activations have that type, too. Those
  // of BatchNorm and SyncBatchNorm that are f32 stay so with f16 and bf16. Gradients are added and
  // reduced in buckets of the parameters' own type. Not together with sparse gradients. Default:
  // none.
  std::optional<DType> parameter_dtype = std::nullopt;
  // How gradients of f32 travel: f16, bf16 or f32. Default: as parameter_dtype; with a codec, f32.
  std::optional<DType> reduce_dtype = std::nullopt;
  // What floating-point buffers are converted to, at construction and for good; but for those of
  // BatchNorm and SyncBatchNorm in f32, unless parameter_dtype is f32 or f64. Default: nothing.
  std::optional<DType> buffer_dtype = std::nullopt;
  // Convert the floating-point tensors that forward() is called with, also those in containers,
  // pairs, tuples and optionals, to parameter_dtype. If the module takes one of these by a
  // reference that is not constant, all arguments stay as they are.
  bool cast_forward_inputs = true;
};

// Must be equal on all ranks. Every field has a default; name only what you change. Written out,
// `DistributedDataParallelOptions{.find_unused_parameters = true}`, a misspelt field is named by
// the compiler.
struct DistributedDataParallelOptions {
  // How many bytes of gradients close the first bucket, the second, ...; the last limit holds for
  // all that follow. As in PyTorch, a single value is the limit of the first bucket, too. Or
  // kAutomaticBucketBytes (reducer/bucket_size.h).
  std::vector<std::size_t> bucket_bytes = {reducer::kFirstBucketBytes, reducer::kBucketBytes};
  // Count the limits from the bucket that is reduced last.
  bool last_bucket_small = false;
  // After the first backward pass, and when the order has changed for good, form buckets in the
  // order in which gradients become ready.
  bool rebuild_buckets = true;
  // Before each forward pass in training mode, make rank 0's buffers (the running averages of batch
  // normalisation, say) everyone's.
  bool broadcast_buffers = true;
  // How else buffers become equal: another rank's, their mean, or as an own hook does it, before
  // each forward pass or after it; see torch/buffer_hook.h. Default: rank 0's, before it. Not
  // together with broadcast_buffers = false.
  std::shared_ptr<BufferHook> buffer_hook = nullptr;
  // At construction, make rank 0's parameters and buffers everyone's.
  bool broadcast_parameters = true;
  // Let backward write gradients of 4 KiB and more straight into their buckets where zero_grad()
  // sets them to none, instead of copying them there. From the first DistributedDataParallel on, an
  // allocator of stretto's stands before libtorch's for the CPU, see torch/gradient_memory.h.
  bool allocate_in_buckets = true;
  // Some parameters may take part in a step on some ranks only, or on none. Such a rank contributes
  // zeros; the gradient of a parameter that no rank has used is not touched. The bucket of a
  // parameter that a rank has not used leaves at the end of backward, and those behind it no
  // sooner, so such parameters are given the last buckets after some steps: the others overlap as
  // they do without this option. Those that no rank has used for two steps do not leave until one
  // does.
  bool find_unused_parameters = false;
  // Every step accumulates as often into each parameter as the first one: for parameters that are
  // used both inside and outside of checkpointed parts, or in several of them. Those that the first
  // step does not use, none does. The first step does not overlap.
  bool static_graph = false;
  // Names of parameters and buffers ("encoder.weight") that are each rank's own.
  std::vector<std::string> parameters_to_ignore = {};
  // Names of parameters whose gradients are sparse (COO), other than those of Embedding and
  // EmbeddingBag modules with sparse = true, which are known.
  std::vector<std::string> sparse_parameters = {};
  // Names of parameters whose gradients are reduced after all others, in buckets of their own:
  // those that are ready late would hold up the buckets behind theirs.
  std::vector<std::string> delayed_parameters = {};
  MixedPrecision mixed_precision = {};
  // After every so many steps, compare the parameters of all ranks, as verify_replicas() does, at
  // the end of backward(). 0: never.
  std::uint64_t verify_every_steps = 0;
  // Where the mean is divided by the number of ranks; sparse gradients always after the sum.
  MeanDivision mean_division = MeanDivision::after_sum;
  // How buckets are reduced; see reducer/communication_hook.h and torch/parameter_hook.h. A hook
  // that remembers things is for one model at a time.
  std::shared_ptr<CommunicationHook> communication_hook = std::make_shared<PlainReduction>();
  // Compresses gradients, what is not sent staying in residuals; or power_sgd(). On the CPU, what a
  // host with several ranks has added up: the same as a communication_hook of TwoLevelReduction
  // around CompressedReduction({.codec = codec, .exchange = exchange, .compression = compression}),
  // which has more options. GPUs compress what each rank has. Not together with another hook.
  // last_compression() says what it did. Default: gradients as they are.
  std::shared_ptr<const Compressor> codec = nullptr;
  CompressedExchange exchange = CompressedExchange::gather;
  Compression compression = Compression::always;
  // For each operation of the constructor and of a step: comparing and broadcasting parameters,
  // what a communication hook compares, reductions, broadcasts of buffers, SyncBatchNorm. Default:
  // the communicator's.
  std::optional<Duration> timeout = std::nullopt;
};

// How join() treats ranks that have run out of batches. They do not step a learning-rate scheduler
// of the loop's: one that counts its steps (StepLR) is to be stepped outside, or replicas diverge.
struct UnevenInputsOptions {
  // What a mean is taken over: all ranks, or only those that still have data.
  bool mean_over_ranks_with_data = false;
  // Whose state (momentum, moments) all ranks get from the last one when the loop has ended, as
  // they get its parameters. Those of step_in_backward() need not be named. Who leaves out one that
  // has a state, and trains on, gets a Mismatch in the second step that follows, since ranks that
  // ran out of batches have stepped it less often.
  std::vector<torch::optim::Optimizer*> optimizers = {};
  // What else communicates in the loop: each ShardedOptimizer (whose own optimizer is not to be
  // named above) and ParameterAveraging, of the model's communicator, in the same order on all
  // ranks; see torch/joinable.h. Where calls of join() are nested, any one of them names each,
  // once; what the loop steps must be named.
  std::vector<Joinable*> joinables = {};
};

namespace ddp {

// Nothing converts to this: compilers show the name where options are misspelt.
class AFieldIsMisspeltWriteDistributedDataParallelOptionsBeforeTheBraceToSeeWhich {
  explicit AFieldIsMisspeltWriteDistributedDataParallelOptionsBeforeTheBraceToSeeWhich(void*, int);
};

}  // namespace ddp

}  // namespace stretto

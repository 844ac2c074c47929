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

// Types in which a model computes and sends its gradients, if they differ from the type of its
// parameters (f32), which the optimizer steps as before. Like PyTorch's MixedPrecision.
struct MixedPrecision {
  // From a forward pass to the end of its backward pass, floating-point parameters hold copies in
  // this type: f16, bf16, f32 or f64. So outputs and activations have it, too. With f16 and bf16,
  // f32 parameters of BatchNorm and SyncBatchNorm stay f32. Gradients are accumulated and reduced
  // in buckets of the parameters' own type. Only for parameters on the CPU, without sparse
  // gradients. Default: no copies.
  std::optional<DType> parameter_dtype = std::nullopt;
  // The type in which gradients of f32 are sent: f16, bf16 or f32. Default: parameter_dtype if that
  // is f16 or bf16 and gradients are not compressed, else f32.
  std::optional<DType> reduce_dtype = std::nullopt;
  // The type to which the constructor converts floating-point buffers, permanently. f32 buffers of
  // BatchNorm and SyncBatchNorm stay f32, unless parameter_dtype is f32 or f64. Default: none.
  std::optional<DType> buffer_dtype = std::nullopt;
  // Convert floating-point tensors among the arguments of forward(), also those in containers,
  // pairs, tuples and optionals, to parameter_dtype. If the module takes such an argument by a
  // reference that is not constant, no argument is converted.
  bool cast_forward_inputs = true;
};

// Must be equal on all ranks. Every field has a default; name only what you change. Write the type
// as well, `DistributedDataParallelOptions{.find_unused_parameters = true}`: then the compiler
// names a misspelt field.
struct DistributedDataParallelOptions {
  // The number of bytes of gradients that closes the first bucket, the second, ...; the last number
  // holds for all later buckets. A single value holds for the first bucket, too, as in PyTorch.
  // kAutomaticBucketBytes (reducer/bucket_size.h): measured.
  std::vector<std::size_t> bucket_bytes = {reducer::kFirstBucketBytes, reducer::kBucketBytes};
  // Count the limits from the bucket that is reduced last.
  bool last_bucket_small = false;
  // After the first backward pass, and when the order has changed for good, form buckets in the
  // order in which gradients become ready.
  bool rebuild_buckets = true;
  // Before each forward pass in training mode, copy rank 0's buffers (the running averages of batch
  // normalisation, say) to all ranks.
  bool broadcast_buffers = true;
  // Makes buffers equal in another way, before or after each forward pass: copies those of another
  // rank, takes their mean, or is a hook of your own; see torch/buffer_hook.h. Default: copies rank
  // 0's before each forward pass. Not together with broadcast_buffers = false.
  std::shared_ptr<BufferHook> buffer_hook = nullptr;
  // At construction, copy rank 0's parameters and buffers to all ranks.
  bool broadcast_parameters = true;
  // If zero_grad() sets gradients to none, let backward write those of 4 KiB and more straight into
  // their buckets, instead of copying them there. For that an allocator of stretto's wraps
  // libtorch's for the CPU until the process ends, see torch/gradient_memory.h. Has no effect on
  // devices and with mixed_precision.parameter_dtype.
  bool allocate_in_buckets = true;
  // Allow steps in which some ranks, or all, do not use some parameters. A rank that does not use a
  // parameter contributes zeros; the gradient of a parameter that no rank uses does not change. If
  // a rank has not used a parameter, it starts the bucket of that parameter, and all buckets behind
  // it, at the end of backward only. So after some steps such parameters are moved to the last
  // buckets; the other buckets then overlap with backward as without this option. A bucket that no
  // rank has used for two steps is not reduced until a rank uses it.
  bool find_unused_parameters = false;
  // Promise that every step accumulates into each parameter as often as the first step. Needed if
  // parameters are used both inside and outside of checkpointed parts, or in several checkpointed
  // parts. No step may use parameters that the first step does not use. Communication of the first
  // step does not overlap with backward.
  bool static_graph = false;
  // Names of parameters and buffers ("encoder.weight") that each rank keeps for itself.
  std::vector<std::string> parameters_to_ignore = {};
  // Names of parameters whose gradients are sparse (COO). Those of Embedding and EmbeddingBag
  // modules with sparse = true are recognised without it.
  std::vector<std::string> sparse_parameters = {};
  // Names of parameters whose gradients are reduced after all others, in buckets of their own. For
  // gradients that are ready late, which would hold up the buckets behind theirs.
  std::vector<std::string> delayed_parameters = {};
  MixedPrecision mixed_precision = {};
  // After every so many steps, compare the parameters of all ranks, as verify_replicas() does, at
  // the end of backward(). 0: never.
  std::uint64_t verify_every_steps = 0;
  // When a sum is divided by the number of ranks. Sparse gradients: always after the sum.
  MeanDivision mean_division = MeanDivision::after_sum;
  // How buckets are reduced; see reducer/communication_hook.h and torch/parameter_hook.h. A hook
  // that keeps state serves one model at a time.
  std::shared_ptr<CommunicationHook> communication_hook = std::make_shared<PlainReduction>();
  // Compresses gradients: a codec, which keeps in residuals what it does not send, or power_sgd().
  // On the CPU, the ranks of a host first add up their gradients, and the sum is compressed, like
  // with a communication_hook of TwoLevelReduction around CompressedReduction({.codec = codec,
  // .exchange = exchange, .compression = compression}), which has more options. On GPUs, each rank
  // compresses its own gradients. Not together with a communication_hook. last_compression() has
  // its statistics. Default: no compression.
  std::shared_ptr<const Compressor> codec = nullptr;
  CompressedExchange exchange = CompressedExchange::gather;
  Compression compression = Compression::always;
  // Bounds each operation of the constructor and of a step: comparing and broadcasting parameters,
  // comparisons of a communication hook, reductions, broadcasts of buffers, SyncBatchNorm. Default:
  // the communicator's timeout.
  std::optional<Duration> timeout = std::nullopt;
};

// How join() treats ranks that have run out of batches. Such ranks do not step a learning-rate
// scheduler in the loop: step one that counts its steps (StepLR) outside, or replicas diverge.
struct UnevenInputsOptions {
  // Take means over the ranks that still have data, instead of over all ranks.
  bool mean_over_ranks_with_data = false;
  // When the loop has ended, all ranks get the state (momentum, moments) of these optimizers from a
  // rank that ran the last step, like its parameters. Optimizers of step_in_backward() need not be
  // named. If an optimizer with state is left out and training goes on, the second step that
  // follows throws Mismatch: ranks that ran out of batches have stepped that optimizer less often.
  std::vector<torch::optim::Optimizer*> optimizers = {};
  // Must name all else that communicates in the loop: each ShardedOptimizer (do not name its own
  // optimizer above) and ParameterAveraging. They use the model's communicator, and stand in the
  // same order on all ranks; see torch/joinable.h. If calls of join() are nested, exactly one of
  // them names each object.
  std::vector<Joinable*> joinables = {};
};

namespace ddp {

// Nothing converts to this class; its name is in the compiler's message if options are misspelt.
class AFieldIsMisspeltWriteDistributedDataParallelOptionsBeforeTheBraceToSeeWhich {
  explicit AFieldIsMisspeltWriteDistributedDataParallelOptionsBeforeTheBraceToSeeWhich(void*, int);
};

}  // namespace ddp

}  // namespace stretto

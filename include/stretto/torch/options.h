// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/reducer/bucket_plan.h"
#include "stretto/reducer/communication_hook.h"
#include "stretto/reducer/divided_reduction.h"

namespace stretto {

// Must be equal on all ranks. Every field has a default; name only what you change. Written out,
// `DistributedDataParallelOptions{.find_unused_parameters = true}`, a misspelt field is named by
// the compiler.
struct DistributedDataParallelOptions {
  // How many bytes of gradients close the first bucket, the second, ...; the last limit holds for
  // all that follow. As in PyTorch, a single value is the limit of the first bucket, too.
  std::vector<std::size_t> bucket_bytes = {reducer::kFirstBucketBytes, reducer::kBucketBytes};
  // Count the limits from the bucket that is reduced last.
  bool last_bucket_small = false;
  // After the first backward pass, and when the order has changed for good, form buckets in the
  // order in which gradients become ready.
  bool rebuild_buckets = true;
  // Before each forward pass in training mode, make rank 0's buffers (the running averages of batch
  // normalisation, say) everyone's.
  bool broadcast_buffers = true;
  // At construction, make rank 0's parameters and buffers everyone's.
  bool broadcast_parameters = true;
  // Some parameters may take part in a step on some ranks only, or on none. Such a rank contributes
  // zeros; the gradient of a parameter that no rank has used is not touched. Costs nothing but that
  // the buckets of such parameters leave at the end of backward.
  bool find_unused_parameters = false;
  // Every step accumulates as often into each parameter as the first one: for parameters that are
  // used both inside and outside of checkpointed parts, or in several of them. Those that the first
  // step does not use, none does. The first step does not overlap.
  bool static_graph = false;
  // Names of parameters and buffers ("encoder.weight") that are each rank's own.
  std::vector<std::string> parameters_to_ignore = {};
  // Names of parameters whose gradients are sparse (COO, one sparse dimension), other than those of
  // Embedding and EmbeddingBag modules with sparse = true, which are known.
  std::vector<std::string> sparse_parameters = {};
  // Where the mean is divided by the number of ranks; sparse gradients always after the sum.
  MeanDivision mean_division = MeanDivision::after_sum;
  // How buckets are reduced; see reducer/communication_hook.h.
  std::shared_ptr<CommunicationHook> communication_hook = std::make_shared<PlainReduction>();
  // For each operation of a step: reductions, and broadcasts of buffers. Default: the
  // communicator's, which always holds for the constructor.
  std::optional<Duration> timeout = std::nullopt;
};

// How join() treats ranks that have run out of batches.
struct UnevenInputsOptions {
  // What a mean is taken over: all ranks, or only those that still have data.
  bool mean_over_ranks_with_data = false;
};

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <span>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "stretto/torch/replica.h"
#include "stretto/torch/sparse_gradients.h"

// Models on devices, of whatever kind. Where the communicator reduces what is in memory of the one
// device, or DeviceCompression does, buckets are there, and gradients are parts of them. Else
// buckets are in memory of the host: a gradient is copied there when autograd has made it, on the
// stream that it was made on, and its reduction back at the end of backward, on the stream of who
// called that.
namespace stretto::ddp {

// Says where gradients of `parameters` lie that a reducer of a replica with `options` reduces, by
// `hook`, unless it says by which. `gradients` describes them.
BucketLocation choose_bucket_location(const std::vector<NamedTensor>& parameters,
                                      std::span<const GradientDescription> gradients,
                                      const Communicator& communicator,
                                      const CommunicationHook& hook,
                                      const DistributedDataParallelOptions& options);

// A tensor on a gradient's storage on `device`, with its parameter's strides where these fill a
// block of memory: so gradient and parameter meet element by element in the optimizer (libtorch's
// gradient layout contract). It keeps the storage alive.
torch::Tensor view_like(const torch::Tensor& parameter, const GradientStorage& storage,
                        torch::Device device);

// The devices of `parameters`, numbered from 0 in the order in which they come: so they may be
// others on each rank.
std::vector<int> device_numbers(const std::vector<NamedTensor>& parameters);

// Throws InvalidArgument if `parameters` are not on the CPU, where alone `what` works.
void check_on_cpu(const std::vector<NamedTensor>& parameters, const std::string& what);

}  // namespace stretto::ddp

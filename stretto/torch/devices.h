// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <span>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "stretto/torch/replica.h"
#include "stretto/torch/sparse_gradients.h"

// Models on devices, of whatever kind. If all parameters are on one device, and the communicator, a
// StagedReduction or DeviceCompression can reduce memory of it, buckets are on that device, and
// gradients are parts of them. Otherwise buckets are in memory of the host. A gradient is then
// copied to the host when autograd has made it, on the stream on which it was made, and its
// reduction is copied back at the end of backward, on the stream of the caller of backward.
namespace stretto::ddp {

// Chooses where the buckets of a replica with `options` lie, whose gradients are those of
// `parameters`, described by `gradients`. `hook` reduces them, unless the result names another.
BucketLocation choose_bucket_location(const std::vector<NamedTensor>& parameters,
                                      std::span<const GradientDescription> gradients,
                                      const Communicator& communicator,
                                      const CommunicationHook& hook,
                                      const DistributedDataParallelOptions& options);

// Returns a tensor on a gradient's storage on `device`, and keeps the storage alive. If the strides
// of the parameter fill a block of memory, the tensor has the same strides (libtorch's gradient
// layout contract), so that the optimizer walks through gradient and parameter in the same order.
torch::Tensor view_like(const torch::Tensor& parameter, const GradientStorage& storage,
                        torch::Device device);

// The device of each of `parameters`, as a number. Devices are numbered from 0 in the order in
// which they come, so the numbers are equal on ranks that use different devices alike.
std::vector<int> device_numbers(const std::vector<NamedTensor>& parameters);

// Throws InvalidArgument if a parameter is not on the CPU: `what` works only there.
void check_on_cpu(const std::vector<NamedTensor>& parameters, const std::string& what);

}  // namespace stretto::ddp

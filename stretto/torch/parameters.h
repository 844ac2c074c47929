// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "stretto/base/clock.h"
#include "stretto/base/error.h"
#include "stretto/communicator/communicator.h"
#include "stretto/reducer/replica_check.h"

namespace stretto::ddp {

// Whether `name`, of a parameter or buffer, is among `names`.
inline bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// Whether `object` is of one of these derived classes.
template <class... Kinds, class Base>
bool is_any_of(const Base& object) {
  return ((dynamic_cast<const Kinds*>(&object) != nullptr) || ...);
}

// Returns each tensor once, where it comes first.
std::vector<torch::Tensor> distinct(std::vector<torch::Tensor> tensors);

// A shape, or strides, as text.
std::string list_text(at::IntArrayRef numbers);

// The message of an exception; for libtorch's exceptions without the stack trace.
std::string text_of(const std::exception& error);

// Why this rank cannot use its arguments: the Error that `check` throws; ok if it throws none.
template <class Check>
Status refusal_of(Check check) {
  try {
    check();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

// Throws on all ranks if one of them refuses its arguments, or if their items differ: on a rank
// with a `refusal` it throws that, on the others Mismatch with the first difference. `options` is
// the first item, and gets the refusal as its first fact. Collective, blocks.
void check_described_alike(Communicator& communicator, const Status& refusal,
                           reducer::ReplicaItem options, std::vector<reducer::ReplicaItem> items,
                           const std::optional<Duration>& timeout);

// The same for parameters: all ranks must have the same number of them, with the same shapes,
// strides and types, in the same order and places (the communicator's device, or another device
// type), so that the bytes of a parameter mean the same on all ranks.
void check_same_parameters(Communicator& communicator, const Status& refusal,
                           reducer::ReplicaItem options,
                           const std::vector<torch::Tensor>& parameters,
                           const std::optional<Duration>& timeout);

}  // namespace stretto::ddp

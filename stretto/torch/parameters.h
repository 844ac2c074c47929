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

// Names of parameters and buffers.
inline bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// Whether an object of a base class is one of these.
template <class... Kinds, class Base>
bool is_any_of(const Base& object) {
  return ((dynamic_cast<const Kinds*>(&object) != nullptr) || ...);
}

// Each tensor once, where it comes first.
std::vector<torch::Tensor> distinct(std::vector<torch::Tensor> tensors);

// A shape, or strides.
std::string list_text(at::IntArrayRef numbers);

// What an exception says: of libtorch's, without the stack that follows.
std::string text_of(const std::exception& error);

// Why this rank cannot use what it has been given: what `check` throws. Ok: it can.
template <class Check>
Status refusal_of(Check check) {
  try {
    check();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

// Throws on all ranks if one of them refuses what it has been given, or if their items differ:
// where there is a `refusal`, that, and else Mismatch with the first difference. `options` is the
// first item, and gets the refusal as its first fact. Collective, blocks.
void check_described_alike(Communicator& communicator, const Status& refusal,
                           reducer::ReplicaItem options, std::vector<reducer::ReplicaItem> items,
                           const std::optional<Duration>& timeout);

// The same, of parameters: all ranks have as many, of the same shapes, strides and types, in this
// order and in the same places; so the bytes of a parameter mean the same everywhere.
void check_same_parameters(Communicator& communicator, const Status& refusal,
                           reducer::ReplicaItem options,
                           const std::vector<torch::Tensor>& parameters,
                           const std::optional<Duration>& timeout);

}  // namespace stretto::ddp

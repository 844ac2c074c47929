// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <optional>

#include "stretto/base/operation.h"
#include "stretto/base/view.h"
#include "stretto/execution/shares.h"
#include "stretto/group/packing.h"

namespace stretto::communicator {

// One rank's part in a collective. Its arguments have been checked.
struct CollectiveCall {
  // Writes each field and nothing else. A compiler-generated constructor first clears all 280
  // bytes, which takes a tenth of an all_reduce of eight bytes.
  CollectiveCall() {}  // NOLINT
  explicit CollectiveCall(const OperationDescriptor& what, ConstByteSpan from = {},
                          ByteSpan to = {},
                          const std::optional<execution::SharesView>& of = std::nullopt)
      : operation(what), input(from), output(to), shares(of) {}

  OperationDescriptor operation;  // The backend fills in its algorithm.
  ConstByteSpan input = {};
  ByteSpan output = {};
  // How many elements belong to each rank. The lists are valid only until submit() returns.
  // Nothing: equal shares.
  std::optional<execution::SharesView> shares = std::nullopt;
  // Work on the caller's buffers before and after. With a packing, an empty `input` or `output`
  // stands for its scratch. A backend for memory of devices finds out where the buffers lie.
  std::optional<group::Packing> packing = std::nullopt;
};

}  // namespace stretto::communicator

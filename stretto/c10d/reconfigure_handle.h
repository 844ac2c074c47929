// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "stretto/c10d/torch_version.h"

namespace stretto::c10d_backend {

// "stretto:RANDOM:HOST:PORT" names a member of a group, and the TCPStore that it has; without HOST
// and PORT, it has another kind of store.
ReconfigureHandle new_handle(const c10::intrusive_ptr<::c10d::Store>& store);

// Where the members of a reconfigure() meet, which have different stores if groups are merged.
struct MeetingPlace {
  int rank = 0;
  int size = 0;
  std::string prefix;      // Of the keys. Those who do not have the same list do not meet.
  std::string tcp_server;  // Empty: the store that this rank has.
};

// For the member `own`. Throws ValueError for handles that are none, and for lists in which `own`
// is missing or one is there twice.
MeetingPlace meeting_place(const ReconfigureHandle& own, const ReconfigureOptions& options);

}  // namespace stretto::c10d_backend

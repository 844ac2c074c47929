// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "stretto/c10d/torch_version.h"

namespace stretto::c10d_backend {

// Makes a handle "stretto:RANDOM:HOST:PORT", which names a member of a group and its TCPStore.
// HOST:PORT is empty if the member has another kind of store.
ReconfigureHandle new_handle(const c10::intrusive_ptr<::c10d::Store>& store);

// Where the members of a reconfigure() meet. They have different stores if groups are merged.
struct MeetingPlace {
  int rank = 0;
  int size = 0;
  std::string prefix;      // Of the keys; members with other lists do not meet.
  std::string tcp_server;  // Empty: this rank's own store.
};

// The place for the member `own`. Throws ValueError if a handle is malformed or listed twice, or if
// `own` is missing.
MeetingPlace meeting_place(const ReconfigureHandle& own, const ReconfigureOptions& options);

}  // namespace stretto::c10d_backend

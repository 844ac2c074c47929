// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>

#include <memory>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"

namespace stretto::transport {

// A process of this host, known by a descriptor (pidfd). The descriptor becomes readable when the
// whole process has ended, even if its number is then reused or others hold its other descriptors.
//
// Copies share the descriptor. Immutable; any thread.
class ProcessHandle {
 public:
  // An empty handle: the process cannot be seen from here, or the kernel has no such descriptors.
  ProcessHandle() = default;
  // Finds a process by its number in this process' namespace. The caller knows that it still
  // exists. Returns an empty handle if it cannot be seen from here. Fails, with system, only for
  // lack of descriptors or memory.
  static Result<ProcessHandle> of_number(pid_t number);
  // The process at the other end of a Unix socket, as the kernel knows it.
  static Result<ProcessHandle> of_socket(int socket);

  bool valid() const { return descriptor_ != nullptr; }
  pid_t number() const { return number_; }
  int descriptor() const { return descriptor_->get(); }
  bool has_ended() const;

 private:
  pid_t number_ = 0;
  std::shared_ptr<const FileDescriptor> descriptor_;
};

}  // namespace stretto::transport

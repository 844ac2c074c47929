// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>

#include <memory>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"

namespace stretto::transport {

// A process of this host, by a descriptor (pidfd) that becomes readable when all of it has ended,
// whoever has its number by then, and whoever has its other descriptors.
//
// Copies share the descriptor. Immutable; any thread.
class ProcessHandle {
 public:
  // None: the process cannot be seen from here, or the kernel has no such descriptors.
  ProcessHandle() = default;
  // Finds one by its number in this process' namespace. Whoever asks knows that the process is
  // still there. Fails, with system, only for lack of descriptors or memory.
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

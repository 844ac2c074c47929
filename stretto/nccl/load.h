// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stretto/base/environment.h"
#include "stretto/base/status.h"
#include "stretto/nccl/interface.h"

namespace stretto::nccl {

// The NCCL that was loaded. It stays loaded until the process ends, since NCCL's threads live so
// long.
struct Nccl {
  // The status of call `what`: ok for kSuccess and kInProgress, else system and NCCL's text.
  Status status_of_call(const char* what, ResultCode result, Comm comm = nullptr) const;
  // The state of `comm`: kInProgress while NCCL is still taking a call.
  ResultCode state_of(Comm comm) const;

  Interface call;
  int version = 0;   // 22703: 2.27.3.
  std::string name;  // "NCCL 2.27.3".
  std::string file;
};

// The files to try for NCCL. STRETTO_NCCL_LIBRARY alone, if it is set. Else libnccl.so.2, which the
// system finds or this process has loaded already, as with PyTorch; then that of the Python in
// VIRTUAL_ENV, whose package nvidia-nccl-cu12 or -cu13 has it.
std::vector<std::string> nccl_files(const Environment& environment);

// Loads the first of `files` that can be loaded. Fails with invalid_argument if none can, or if it
// is too old.
Result<std::shared_ptr<const Nccl>> load_nccl(const std::vector<std::string>& files);

}  // namespace stretto::nccl

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

// NCCL as it was found. Stays loaded as long as the process lives, for NCCL's threads do.
struct Nccl {
  // Ok, also of what NCCL has begun; or what it says.
  Status status_of_call(const char* what, ResultCode result, Comm comm = nullptr) const;
  // Of what has been begun on it: kInProgress while NCCL is still taking a call.
  ResultCode state_of(Comm comm) const;

  Interface call;
  int version = 0;   // 22703: 2.27.3.
  std::string name;  // "NCCL 2.27.3".
  std::string file;
};

// Where NCCL is looked for: STRETTO_NCCL_LIBRARY, and nowhere else if that is set; where the system
// finds libnccl.so.2, or has it in this process already, as with PyTorch; beside the packages of
// the Python in VIRTUAL_ENV, whose package nvidia-nccl-cu12 or -cu13 has it.
std::vector<std::string> nccl_files(const Environment& environment);

// Fails with invalid_argument if there is none, or if it is too old.
Result<std::shared_ptr<const Nccl>> load_nccl(const std::vector<std::string>& files);

}  // namespace stretto::nccl

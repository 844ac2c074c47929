// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdio>
#include <exception>

#include "stretto/base/error.h"

namespace stretto::testing {

// The exit status of a rank's main(): 0, or 1 after a line with "wrong" and why.
template <class Work>
int run_or_explain(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    std::printf("wrong %s\n", error.what());
    return 1;
  }
  return 0;
}

// The name of the class of an exception.
inline const char* type_of(const std::exception& error) {
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) return "InvalidArgument";
  if (dynamic_cast<const PeerLost*>(&error) != nullptr) return "PeerLost";
  if (dynamic_cast<const Timeout*>(&error) != nullptr) return "Timeout";
  if (dynamic_cast<const Mismatch*>(&error) != nullptr) return "Mismatch";
  if (dynamic_cast<const Refused*>(&error) != nullptr) return "Refused";
  if (dynamic_cast<const Aborted*>(&error) != nullptr) return "Aborted";
  if (dynamic_cast<const ProtocolError*>(&error) != nullptr) return "ProtocolError";
  if (dynamic_cast<const SystemError*>(&error) != nullptr) return "SystemError";
  if (dynamic_cast<const OutOfMemory*>(&error) != nullptr) return "OutOfMemory";
  if (dynamic_cast<const InternalError*>(&error) != nullptr) return "InternalError";
  return "std::exception";
}

}  // namespace stretto::testing

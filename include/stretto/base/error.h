// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <stdexcept>
#include <string>

#include "stretto/base/status.h"

namespace stretto {

// The exception that the public interface throws. `status()` has the code and the rank at fault.
// Each type is for a failure that a program may want to catch: a lost peer, for example.
class Error : public std::runtime_error {
 public:
  explicit Error(Status status)
      : std::runtime_error(std::string(status.message())), status_(std::move(status)) {}
  const Status& status() const { return status_; }

 private:
  Status status_;
};

class InvalidArgument : public Error {
  using Error::Error;
};
class PeerLost : public Error {
  using Error::Error;
};
class Timeout : public Error {
  using Error::Error;
};
class Mismatch : public Error {
  using Error::Error;
};
class Refused : public Error {
  using Error::Error;
};
class Aborted : public Error {
  using Error::Error;
};
class ProtocolError : public Error {
  using Error::Error;
};
class SystemError : public Error {
  using Error::Error;
};
class OutOfMemory : public Error {
  using Error::Error;
};
class InternalError : public Error {
  using Error::Error;
};

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <stdexcept>
#include <string>

#include "stretto/base/status.h"

namespace stretto {

// What the public face throws. `status()` carries the code and the rank at fault; the types exist
// so that a program can catch the failures it can answer: a lost peer, say, but not a caller's bug.
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

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>

#include "stretto/base/error.h"
#include "tests/support/expect_contains.h"

namespace stretto::testing {

// Returns the status of the exception that `body` throws, which must be a Failure.
template <class Failure = Error>
Status failure_of(const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "no failure";
  } catch (const Failure& failure) {
    return failure.status();
  } catch (const std::exception& other) {
    ADD_FAILURE() << "another failure: " << other.what();
  }
  return {};
}

template <class Failure = Error>
std::string error_of(const std::function<void()>& body) {
  return std::string(failure_of<Failure>(body).message());
}

// Returns what() of the exception that `call` throws; empty if it throws nothing.
template <class Exception>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Exception& exception) {
    return exception.what();
  }
  return {};
}

}  // namespace stretto::testing

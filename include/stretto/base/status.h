// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/core.h>

#include "stretto/base/id.h"

namespace stretto {

enum class StatusCode {
  ok,
  invalid_argument,  // The caller asked for something that has no meaning.
  peer_lost,         // Another rank died, left, or became unreachable.
  timeout,           // A deadline passed.
  mismatch,          // Ranks called different operations, or disagree on the size or the model.
  refused,           // Another key, version or settings; a rank that is taken; an unsafe file.
  aborted,           // abort(), shrink() or an exception has ended the communicator.
  protocol,          // A peer sent bytes that no correct peer sends.
  system,            // The operating system refused a call.
  out_of_memory,     // There is not enough memory left.
  internal,          // A bug in stretto.
};

std::string_view name(StatusCode code);

// Success, or the reason of a failure. Copies share the text, so that a failed communicator can
// return its first failure any number of times.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, std::optional<Rank> rank = std::nullopt)
      : state_(std::make_shared<const State>(State{code, std::move(message), rank})) {}

  bool ok() const { return state_ == nullptr; }
  StatusCode code() const { return ok() ? StatusCode::ok : state_->code; }
  // Empty on success.
  std::string_view message() const { return ok() ? std::string_view() : state_->message; }
  // The rank that caused the failure, if one did.
  std::optional<Rank> rank() const { return ok() ? std::nullopt : state_->rank; }

  // The same failure, preceded by what was being done: "while joining: connection refused".
  Status with_context(std::string_view context) const;

  // Throws the exception type of base/error.h that belongs to the code. Does nothing on success.
  void or_throw() const;

 private:
  struct State {
    StatusCode code;
    std::string message;
    std::optional<Rank> rank;
  };
  std::shared_ptr<const State> state_;
};

// A failure with a formatted text: status_of(StatusCode::timeout, "waited {} s", 3).
template <class... Args>
Status status_of(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return {code, fmt::format(format, std::forward<Args>(args)...)};
}

// The failure of the system call `what`, from errno: "bind: Address already in use". If a limit has
// been reached, it says which one.
Status system_status(std::string_view what);
Status system_status(std::string_view what, int error_number);

// A value, or the failure that prevented it.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::move(value)) {}         // NOLINT: `return value;` is the purpose.
  Result(Status status) : content_(std::move(status)) {}  // NOLINT: as above.

  bool ok() const { return std::holds_alternative<T>(content_); }
  Status status() const { return ok() ? Status() : std::get<Status>(content_); }
  T& value() { return std::get<T>(content_); }
  const T& value() const { return std::get<T>(content_); }
  T* operator->() { return &value(); }
  T& operator*() & { return value(); }
  T operator*() && { return std::move(value()); }

  T or_throw() && {
    status().or_throw();
    return std::move(value());
  }

 private:
  std::variant<T, Status> content_;
};

// Returns the failure of `expression`, if it has one, from the enclosing function.
#define STRETTO_RETURN_IF_ERROR(expression)                                      \
  do {                                                                           \
    if (::stretto::Status stretto_status_ = (expression); !stretto_status_.ok()) \
      return stretto_status_;                                                    \
  } while (false)

// Declares a variable with the value of a Result, or returns its failure from the enclosing
// function: STRETTO_ASSIGN_OR_RETURN(const int port, local_port(socket)). Can also assign to an
// existing variable. It is three statements, so behind an `if` it needs a block of its own.
#define STRETTO_ASSIGN_OR_RETURN(declaration, ...) \
  STRETTO_ASSIGN_OR_RETURN_AT(__LINE__, declaration, __VA_ARGS__)
#define STRETTO_ASSIGN_OR_RETURN_AT(line, declaration, ...) \
  STRETTO_ASSIGN_OR_RETURN_BY(line, declaration, __VA_ARGS__)
#define STRETTO_ASSIGN_OR_RETURN_BY(line, declaration, ...)               \
  auto stretto_result_##line = (__VA_ARGS__);                             \
  if (!stretto_result_##line.ok()) return stretto_result_##line.status(); \
  declaration = *std::move(stretto_result_##line)

}  // namespace stretto

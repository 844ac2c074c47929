// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/status.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "stretto/base/error.h"
#include "stretto/base/name_in.h"

namespace stretto {
namespace {

rlim_t limit_of(__rlimit_resource_t resource) {
  rlimit limit{};
  return ::getrlimit(resource, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// What the user can do if a limit of the system has been reached.
std::string remedy(int error_number) {
  switch (error_number) {
    case EMFILE:
      return fmt::format("; raise `ulimit -n`, which is {}", limit_of(RLIMIT_NOFILE));
    case ENFILE:
      return "; raise the machine's fs.file-max (sysctl)";
    case ENOMEM:
      if (const rlim_t bytes = limit_of(RLIMIT_AS); bytes != RLIM_INFINITY) {
        return fmt::format("; raise `ulimit -v`, which is {}", bytes / 1024);
      }
      return "; memory is short, or the machine's vm.max_map_count (sysctl) too low";
    case EFBIG:
      return "; raise `ulimit -f`";
    default:
      return {};
  }
}

}  // namespace

std::string_view name(StatusCode code) {
  return name_in({"ok", "invalid argument", "peer lost", "timeout", "mismatch", "refused",
                  "aborted", "protocol error", "system error", "out of memory", "internal error"},
                 code, "unknown status");
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return {};
  return {state_->code, fmt::format("{}: {}", context, state_->message), state_->rank};
}

void Status::or_throw() const {
  switch (code()) {
    case StatusCode::ok:
      return;
    case StatusCode::invalid_argument:
      throw InvalidArgument(*this);
    case StatusCode::peer_lost:
      throw PeerLost(*this);
    case StatusCode::timeout:
      throw Timeout(*this);
    case StatusCode::mismatch:
      throw Mismatch(*this);
    case StatusCode::refused:
      throw Refused(*this);
    case StatusCode::aborted:
      throw Aborted(*this);
    case StatusCode::protocol:
      throw ProtocolError(*this);
    case StatusCode::system:
      throw SystemError(*this);
    case StatusCode::out_of_memory:
      throw OutOfMemory(*this);
    case StatusCode::internal:
      throw InternalError(*this);
  }
}

Status system_status(std::string_view what) { return system_status(what, errno); }

Status system_status(std::string_view what, int error_number) {
  return status_of(StatusCode::system, "{}: {}{}", what, std::strerror(error_number),
                   remedy(error_number));
}

}  // namespace stretto

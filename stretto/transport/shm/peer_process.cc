// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/shm/peer_process.h"

#include <sys/uio.h>

#include <cerrno>

#include <fmt/format.h>

namespace stretto::transport::shm {
namespace {

// Calls `copy` until all is copied; it copies less where its end of a range cannot be reached, or
// the range is too long for one call. Returns an error number, 0 for none.
template <class Copy>
int copy_all(Copy* copy, pid_t process, iovec own, iovec theirs) {
  while (own.iov_len > 0) {
    const ssize_t copied = copy(process, &own, 1, &theirs, 1, 0);
    if (copied < 0 && errno == EINTR) continue;
    if (copied < 0) return errno;
    if (copied == 0) return EFAULT;  // Never, for a range that is not empty.
    const auto bytes = static_cast<std::size_t>(copied);
    own = {static_cast<std::byte*>(own.iov_base) + bytes, own.iov_len - bytes};
    theirs = {static_cast<std::byte*>(theirs.iov_base) + bytes, theirs.iov_len - bytes};
  }
  return 0;
}

}  // namespace

Status PeerProcess::gone() const {
  return {
      StatusCode::peer_lost,
      fmt::format("rank {} is gone: its process {} has ended", rank_.value(), process_.number()),
      rank_};
}

Status PeerProcess::prove(std::uint64_t address, std::uint32_t expected) const {
  if (!valid()) return {StatusCode::system, "its process cannot be seen from here"};
  std::uint32_t found = 0;
  STRETTO_RETURN_IF_ERROR(get(address, std::as_writable_bytes(std::span(&found, 1))));
  if (found != expected) {
    return {StatusCode::protocol, "it is not where it says that it is", rank_};
  }
  // A system may allow reading and forbid writing.
  return put(std::as_bytes(std::span(&found, 1)), address);
}

Status PeerProcess::get(std::uint64_t address, ByteSpan to) const {
  return copy(::process_vm_readv, "reading", to, address);
}

Status PeerProcess::put(ConstByteSpan from, std::uint64_t address) const {
  // Only read from: the kernel has one type for both directions.
  return copy(::process_vm_writev, "writing", {const_cast<std::byte*>(from.data()), from.size()},
              address);
}

Status PeerProcess::copy(Call* call, const char* what, ByteSpan own, std::uint64_t address) const {
  if (process_.has_ended()) return gone();
  const int error_number = copy_all(call, process_.number(), {own.data(), own.size()},
                                    {reinterpret_cast<void*>(address), own.size()});
  return error_number == 0 ? Status() : failure(what, own.size(), error_number);
}

Status PeerProcess::failure(const char* what, std::size_t bytes, int error_number) const {
  if (error_number == ESRCH) return gone();
  const Status cause = system_status(
      fmt::format("{} {} bytes of private memory of rank {}", what, bytes, rank_.value()),
      error_number);
  if (error_number != EFAULT) return {cause.code(), std::string(cause.message()), rank_};
  return {cause.code(),
          fmt::format("{}. A buffer must stay where it is until its operation has ended, and have "
                      "the length that was said: one of rank {}, or the one here, has not",
                      cause.message(), rank_.value()),
          rank_};
}

}  // namespace stretto::transport::shm

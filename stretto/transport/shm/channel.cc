// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/shm/channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "stretto/base/file_passing.h"
#include "stretto/base/log.h"
#include "stretto/base/poll.h"
#include "stretto/base/status.h"
#include "stretto/base/would_block.h"

namespace stretto::transport::shm {
namespace {

bool known(Notice::Kind kind) {
  return kind >= Notice::Kind::doorbell && kind <= Notice::Kind::proof;
}

}  // namespace

Channel::~Channel() { shut_down(); }

void Channel::shut_down() { (void)::shutdown(socket_.get(), SHUT_RDWR); }

bool Channel::try_send(const Notice& notice, const FileDescriptor* file) {
  const Sending sending = send_with_file(socket_.get(), std::as_bytes(std::span(&notice, 1)), file);
  // A gone peer is noticed by receive(); there is nothing left to be sent to it.
  if (sending == Sending::failed && errno != EPIPE && errno != ECONNRESET) {
    log(LogLevel::warning, "{}", system_status("telling a rank of shared memory").message());
  }
  return sending != Sending::later;
}

void Channel::send(const Notice& notice, std::shared_ptr<const FileDescriptor> file) {
  if (closed_) return;
  flush();
  if (pending_.empty() && try_send(notice, file.get())) return;
  pending_.push_back({notice, std::move(file)});
}

bool Channel::take_back(std::uint32_t region) {
  const auto found = std::ranges::find_if(pending_, [region](const Pending& pending) {
    return pending.notice.kind == Notice::Kind::region && pending.notice.region == region;
  });
  if (found == pending_.end()) return false;
  pending_.erase(found);
  return true;
}

void Channel::flush() {
  std::size_t done = 0;
  while (done < pending_.size() && try_send(pending_[done].notice, pending_[done].file.get())) {
    ++done;
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(done));
}

void Channel::ring() { (void)try_send(Notice{}, nullptr); }

std::optional<Channel::Received> Channel::receive() {
  Received received;
  ReceivedFile taken =
      receive_with_file(socket_.get(), std::as_writable_bytes(std::span(&received.notice, 1)));
  stuck_.reset();
  if (taken.count < 0 && would_block(errno)) return std::nullopt;
  // A notice is sent whole, and the kernel keeps it so; anything else is not from a peer of ours.
  const bool is_notice = taken.count == sizeof(Notice) && known(received.notice.kind);
  // The end of a peer is reported at once, even if notices of it are still here.
  if (is_notice && taken.no_room != 0 && !is_hung_up(socket_.get())) {
    stuck_ = Stuck{received.notice, taken.no_room};
    return std::nullopt;
  }
  if (!is_notice || taken.no_room != 0) {
    closed_ = true;
    pending_.clear();
    return std::nullopt;
  }
  received.descriptor = std::move(taken.file);
  return received;
}

}  // namespace stretto::transport::shm

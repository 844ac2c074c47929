// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/shm/channel.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "stretto/base/file_passing.h"
#include "stretto/base/log.h"
#include "stretto/base/would_block.h"

namespace stretto::transport::shm {
namespace {

// Between two looks for room: a shortage has time to end.
constexpr std::chrono::milliseconds kAskPause(100);

bool known(Notice::Kind kind) {
  return kind >= Notice::Kind::doorbell && kind <= Notice::Kind::again;
}

}  // namespace

Result<std::shared_ptr<Channel>> Channel::create(FileDescriptor socket) {
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return system_status("fcntl");
  }
  return std::shared_ptr<Channel>(new Channel(std::move(socket)));
}

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
  if (file != nullptr) unconfirmed_.insert_or_assign(notice.region, Pending{notice, file});
  if (pending_.empty() && try_send(notice, file.get())) return;
  pending_.push_back({notice, std::move(file)});
}

bool Channel::take_back(std::uint32_t region) {
  const auto sent = unconfirmed_.extract(region);
  const bool is_awaited = !sent.empty() && sent.mapped().is_awaited;
  return drop_pending(region) && !is_awaited;
}

bool Channel::drop_pending(std::uint32_t region) {
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
  if (!lost_.empty()) ask_again();
}

// Only when there is room for a descriptor, or the answer would be lost as well. And only once
// before the answer comes, however late the owner looks: of several answers one could be lost after
// another has been taken, and the owner would then say that the region is gone.
void Channel::ask_again() {
  const TimePoint now = Clock::now();
  if (now < ask_at_ || !pending_.empty()) return;
  ask_at_ = now + kAskPause;
  const FileDescriptor room(::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0));
  const int error_number = errno;
  for (auto& [region, lost] : lost_) {
    if (!room.valid()) {
      lost.error_number = error_number;
    } else if (!std::exchange(lost.is_asked_for, true)) {
      send({.kind = Notice::Kind::again, .region = region});
    }
  }
}

std::optional<Channel::Lost> Channel::find_lost(std::uint32_t region) const {
  const auto found = lost_.find(region);
  return found == lost_.end() ? std::nullopt : std::optional(found->second);
}

void Channel::ring() { (void)try_send(Notice{}, nullptr); }

std::optional<Channel::Received> Channel::receive() {
  while (true) {
    bool file_lost = false;
    std::optional<Received> received = receive_next(file_lost);
    if (!received || !serve(*received, file_lost)) return received;
  }
}

// Sees to it that files arrive. Returns whether the notice was about nothing else.
bool Channel::serve(const Received& received, bool file_lost) {
  const Notice& notice = received.notice;
  switch (notice.kind) {
    case Notice::Kind::taken:
      unconfirmed_.erase(notice.region);
      return true;
    case Notice::Kind::again:
      send_again(notice.region);
      return true;
    case Notice::Kind::release:
      lost_.erase(notice.region);
      return false;
    case Notice::Kind::region:
      if (file_lost) {
        const Lost lost{.bytes = notice.bytes, .error_number = EMFILE};
        lost_.try_emplace(notice.region, lost).first->second.is_asked_for = false;
        return true;
      }
      lost_.erase(notice.region);
      send({.kind = Notice::Kind::taken, .region = notice.region});
      return false;
    default:
      return false;
  }
}

void Channel::send_again(std::uint32_t region) {
  const auto found = unconfirmed_.find(region);
  if (found == unconfirmed_.end()) return send({.kind = Notice::Kind::release, .region = region});
  drop_pending(region);
  const Pending again = found->second;
  send(again.notice, again.file);
  found->second.is_awaited = true;
}

std::optional<Channel::Received> Channel::receive_next(bool& file_lost) {
  Received received;
  ReceivedFile taken =
      receive_with_file(socket_.get(), std::as_writable_bytes(std::span(&received.notice, 1)));
  if (taken.count < 0 && would_block(errno)) return std::nullopt;
  received.descriptor = std::move(taken.file);
  file_lost = taken.is_lost;
  // A notice is sent whole, and the kernel keeps it so; anything else is no peer of ours.
  if (taken.count != sizeof(Notice) || !known(received.notice.kind)) {
    closed_ = true;
    pending_.clear();
    unconfirmed_.clear();
    lost_.clear();
    return std::nullopt;
  }
  return received;
}

}  // namespace stretto::transport::shm

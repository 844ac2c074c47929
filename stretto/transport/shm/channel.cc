// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/shm/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace stretto::transport::shm {
namespace {

// Room for one descriptor beside a notice.
union ControlBuffer {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};
// Not CMSG_SPACE, whose padding has room for a second descriptor: a peer could make us leak it.
constexpr std::size_t kControlBytes = CMSG_LEN(sizeof(int));

msghdr make_message(iovec& vector) {
  return {.msg_name = nullptr,
          .msg_namelen = 0,
          .msg_iov = &vector,
          .msg_iovlen = 1,
          .msg_control = nullptr,
          .msg_controllen = 0,
          .msg_flags = 0};
}

// Whether a refusal to send will pass: the socket is full, too many descriptors are on their way.
bool passing(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == EINTR ||
         error_number == ETOOMANYREFS || error_number == ENOBUFS || error_number == ENOMEM;
}

bool known(Notice::Kind kind) {
  return kind >= Notice::Kind::doorbell && kind <= Notice::Kind::proof;
}

}  // namespace

Result<std::shared_ptr<Channel>> Channel::create(FileDescriptor socket) {
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return system_status("fcntl");
  }
  return std::shared_ptr<Channel>(new Channel(std::move(socket)));
}

bool Channel::try_send(const Notice& notice, const FileDescriptor* file) {
  iovec vector{.iov_base = const_cast<Notice*>(&notice), .iov_len = sizeof(notice)};
  msghdr message = make_message(vector);
  ControlBuffer control{};
  if (file != nullptr) {
    message.msg_control = control.bytes;
    message.msg_controllen = kControlBytes;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int descriptor = file->get();
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  // A gone peer is noticed by receive(); there is nothing left to be sent to it.
  return sent >= 0 || !passing(errno);
}

void Channel::send(const Notice& notice, std::shared_ptr<const FileDescriptor> file) {
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
  iovec vector{.iov_base = &received.notice, .iov_len = sizeof(received.notice)};
  msghdr message = make_message(vector);
  ControlBuffer control{};
  message.msg_control = control.bytes;
  message.msg_controllen = kControlBytes;
  const ssize_t given = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  if (given < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    return std::nullopt;
  }
  const cmsghdr* header = given > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
    received.descriptor = FileDescriptor(descriptor);
  }
  // A notice is sent whole, and the kernel keeps it so; anything else is no peer of ours.
  if (given != sizeof(Notice) || !known(received.notice.kind)) {
    closed_ = true;
    return std::nullopt;
  }
  return received;
}

Result<Channel::Received> Channel::wait_for(Notice::Kind kind, Deadline deadline) {
  while (true) {
    std::optional<Received> received = receive();
    if (received && received->notice.kind == kind) return std::move(*received);
    if (closed_) return status_of(StatusCode::peer_lost, "the process is gone");
    if (deadline.passed()) return status_of(StatusCode::timeout, "no answer on the Unix socket");
    if (received) continue;
    flush();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    pollfd waiting{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    ::poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 1000)));
  }
}

}  // namespace stretto::transport::shm

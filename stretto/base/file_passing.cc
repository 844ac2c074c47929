// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/file_passing.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "stretto/base/would_block.h"

namespace stretto {
namespace {

struct ControlBuffer {
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int))] = {};
};
// Not CMSG_SPACE, whose padding has room for a second descriptor: a peer could send one that is
// never closed.
constexpr std::size_t kControlBytes = CMSG_LEN(sizeof(int));

}  // namespace

Sending send_with_file(int socket, ConstByteSpan bytes, const FileDescriptor* file) {
  iovec part{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ControlBuffer control;
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
  if (::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return Sending::done;
  const bool passing =
      would_block(errno) || errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM;
  return passing ? Sending::later : Sending::failed;
}

ReceivedFile receive_with_file(int socket, ByteSpan bytes) {
  iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ControlBuffer control;
  message.msg_control = control.bytes;
  message.msg_controllen = kControlBytes;
  // Peeks first: if there is no free descriptor for the file, taking the message would lose the
  // file.
  ReceivedFile received{
      .count = ::recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC)};
  const cmsghdr* header = received.count > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
    received.file = FileDescriptor(descriptor);
  }
  if (received.count <= 0) return received;
  if ((message.msg_flags & MSG_CTRUNC) != 0 && !received.file.valid()) {
    // If a descriptor is free here, then either the system refuses the file, or none was free a
    // moment ago.
    const FileDescriptor room(::fcntl(socket, F_DUPFD_CLOEXEC, 0));
    received.no_room = room.valid() ? EACCES : errno;
    return received;
  }
  received.count = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
  return received;
}

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What another process of the host may say about its memory over the Unix socket, with files that
// are what it says, others, or none. Whatever address it then names, only memory that is there is
// found, as long as it is held.
// Sources: channel.cc memory.cc peer_process.cc ../memory.cc ../process_handle.cc

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "stretto/base/sealed_memory.h"
#include "stretto/transport/shm/memory.h"

using namespace stretto::transport;
using stretto::FileDescriptor;

namespace {

constexpr std::size_t kFileBytes = 8192;

struct Said {
  shm::Notice notice;
  std::uint64_t offset_bytes;
  std::uint32_t bytes;
  std::uint32_t file;
};

void send(int socket, const Said& said) {
  static const FileDescriptor good = stretto::make_sealed_memory("fuzz", kFileBytes).or_throw();
  static const FileDescriptor shrinks(::memfd_create("fuzz", MFD_CLOEXEC));
  iovec vector{const_cast<shm::Notice*>(&said.notice),
               said.file % 16 == 0 ? 7 : sizeof(said.notice)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (said.file % 4 != 3) {
    message.msg_control = control;
    message.msg_controllen = CMSG_LEN(sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int file = said.file % 4 == 2 ? shrinks.get() : good.get();
    std::memcpy(CMSG_DATA(header), &file, sizeof(file));
  }
  (void)::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  const FileDescriptor peer(ends[1]);
  const auto channel = shm::Channel::create(FileDescriptor(ends[0])).or_throw();
  const auto memory =
      std::make_shared<shm::ShmMemory>(0, std::vector{std::shared_ptr<shm::Channel>(), channel});
  std::vector<std::shared_ptr<void>> held;
  Said said;
  for (; size >= sizeof(said); data += sizeof(said), size -= sizeof(said)) {
    std::memcpy(&said, data, sizeof(said));
    send(peer.get(), said);
    while (auto received = channel->receive()) memory->receive(1, std::move(*received));
    memory->service();
    const RemoteAddress address{said.notice.region, said.offset_bytes};
    volatile std::byte* const found = memory->resolve(1, address, said.bytes);
    if (found != nullptr && said.bytes > 0) {
      found[0] = found[said.bytes - 1];
      if (said.offset_bytes + said.bytes > kFileBytes) std::abort();
    }
    held.push_back(memory->hold(1, address));
  }
  return 0;
}

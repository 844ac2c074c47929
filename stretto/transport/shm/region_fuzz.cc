// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Another process of the host may say anything about its memory over the Unix socket, with files
// that fit, other files, or none. Whatever address it names then, only memory that is there is
// found, and it stays there while it is held.
// Sources: channel.cc memory.cc peer_process.cc ../memory.cc ../process_handle.cc ../ring.cc

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "stretto/base/sealed_memory.h"
#include "stretto/transport/shm/memory.h"
#include "tests/support/send_with_descriptors.h"

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
  const int file = said.file % 4 == 2 ? shrinks.get() : good.get();
  const auto notice = std::as_bytes(std::span(&said.notice, 1));
  (void)stretto::testing::send_with_descriptors(socket,
                                                said.file % 16 == 0 ? notice.first(7) : notice,
                                                {&file, said.file % 4 == 3 ? 0u : 1u});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  const FileDescriptor peer(ends[1]);
  const auto channel = std::make_shared<shm::Channel>(FileDescriptor(ends[0]));
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

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/shm/host.h"

#include "stretto/transport/shm/link.h"

namespace stretto::transport::shm {
namespace {

// Keeps two inboxes mapped.
struct Inboxes {
  std::shared_ptr<std::byte> own;
  std::shared_ptr<std::byte> peer;
};

Result<Mapping> receive_inbox(Channel& channel, int ranks, Deadline deadline) {
  Result<Channel::Received> received = channel.wait_for(Notice::Kind::inbox, deadline);
  if (!received.ok()) return received.status();
  if (received->notice.bytes != Inbox::bytes(ranks)) {
    return status_of(StatusCode::protocol, "an inbox of {} bytes where {} were expected",
                     received->notice.bytes, Inbox::bytes(ranks));
  }
  return Mapping::open(std::move(received->descriptor), received->notice.bytes);
}

Status receive_proof(Channel& channel, Rank peer, Memory& memory, Deadline deadline) {
  Result<Channel::Received> received = channel.wait_for(Notice::Kind::proof, deadline);
  if (!received.ok()) return received.status();
  memory.prove(peer, received->notice);
  return {};
}

}  // namespace

Result<Endpoint::Parts> attach(Rank self, std::vector<FileDescriptor> sockets, Deadline deadline) {
  const int ranks = static_cast<int>(sockets.size());
  Result<Mapping> own = Mapping::create(Inbox::bytes(ranks));
  if (!own.ok()) return own.status();
  std::vector<std::shared_ptr<Channel>> channels;
  const auto file = std::make_shared<const FileDescriptor>(std::move(own->descriptor));
  const Notice offer{.kind = Notice::Kind::inbox, .region = 0, .bytes = own->bytes};
  for (FileDescriptor& socket : sockets) {
    if (!socket.valid()) {
      channels.push_back(nullptr);
      continue;
    }
    Result<std::shared_ptr<Channel>> channel = Channel::create(std::move(socket));
    if (!channel.ok()) return channel.status();
    (*channel)->send(offer, file);
    channels.push_back(std::move(*channel));
  }
  Endpoint::Parts parts{.rank = self, .links = {}, .memory = nullptr, .sleep_flag = nullptr};
  const auto memory = std::make_shared<Memory>(self, channels);
  for (const auto& channel : channels) {
    if (channel != nullptr) channel->send(memory->proof());
  }
  for (int r = 0; r < ranks; ++r) {
    const auto& channel = channels[static_cast<std::size_t>(r)];
    parts.links.push_back(nullptr);
    if (channel == nullptr) continue;
    Result<Mapping> peer = receive_inbox(*channel, ranks, deadline);
    const Status proved = peer.ok() ? receive_proof(*channel, r, *memory, deadline) : peer.status();
    if (!proved.ok()) return proved.with_context(fmt::format("sharing memory with rank {}", r));
    parts.links.back() = std::make_unique<RingLink>(
        RingLink::Parts{.name = "shm",
                        .own = Inbox(own->data.get()),
                        .peer = Inbox(peer->data.get()),
                        .own_rank = self.value(),
                        .peer_rank = r,
                        .doorbell = std::make_unique<ChannelDoorbell>(r, channel, memory),
                        .memory = std::make_shared<Inboxes>(Inboxes{own->data, peer->data})});
  }
  parts.sleep_flag = std::make_unique<InboxSleepFlag>(Inbox(own->data.get()), own->data);
  parts.memory = memory;
  return parts;
}

}  // namespace stretto::transport::shm

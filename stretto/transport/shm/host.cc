// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/shm/host.h"

#include <poll.h>

#include <algorithm>

#include "stretto/transport/ring_link.h"
#include "stretto/transport/shm/channel.h"
#include "stretto/transport/shm/memory.h"
#include "stretto/transport/shortage.h"

namespace stretto::transport::shm {
namespace {

constexpr std::chrono::milliseconds kPause(20);

// Wakes a rank of this host through the Unix socket between the two, which also carries the files
// of regions and ends when the peer does.
class ChannelDoorbell final : public Doorbell {
 public:
  ChannelDoorbell(Rank peer, std::shared_ptr<Channel> channel, std::shared_ptr<ShmMemory> memory)
      : peer_(peer), channel_(std::move(channel)), memory_(std::move(memory)) {}

  void ring() override { channel_->ring(); }
  int descriptor() const override { return channel_->descriptor(); }
  void service() override {
    while (std::optional<Channel::Received> received = channel_->receive()) {
      memory_->receive(peer_, std::move(*received));
    }
  }
  bool closed() const override { return channel_->closed(); }
  void close() override { channel_->shut_down(); }

 private:
  Rank peer_;
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<ShmMemory> memory_;
};

using Channels = RankVector<std::shared_ptr<Channel>>;

// Waits until something has come from a peer; not for long, as there may be room for a file at any
// time.
void wait_for_any(const Channels& channels) {
  std::vector<pollfd> waiting;
  for (const auto& channel : channels) {
    const int descriptor = channel == nullptr ? -1 : channel->descriptor();
    // A notice for whose file there is no room stays readable, and must not end the wait.
    const short events = channel != nullptr && channel->stuck() ? POLLRDHUP : POLLIN;
    waiting.push_back({.fd = descriptor, .events = events, .revents = 0});
  }
  ::poll(waiting.data(), waiting.size(), static_cast<int>(kPause.count()));
}

// Takes in the inboxes and the proofs of all peers, and goes on until everything for them has been
// sent: the rest of joining does not send it.
Status meet_peers(const Channels& channels, ShmMemory& memory, std::size_t inbox_bytes,
                  const WaitLimit& limit) {
  ShortageTimer timer;
  while (true) {
    Status shortage;
    bool complete = true;
    memory.service();
    for (std::size_t i = 0; i < channels.size(); ++i) {
      if (channels[i] == nullptr) continue;
      const Rank peer = static_cast<int>(i);
      while (std::optional<Channel::Received> received = channels[i]->receive()) {
        memory.receive(peer, std::move(*received));
      }
      const bool is_here = memory.resolve(peer, kInbox, inbox_bytes) != nullptr;
      if (is_here && memory.has_heard_proof(peer) && !channels[i]->has_pending()) continue;
      complete = false;
      if (shortage.ok()) shortage = memory.find_shortage(peer, kInbox);
      const auto failure = [&](StatusCode code, const char* text) {
        return Status(code, fmt::format("sharing memory with rank {}: {}", i, text), peer);
      };
      if (channels[i]->closed()) return failure(StatusCode::peer_lost, "the process is gone");
      if (!is_here && memory.resolve(peer, kInbox, 1) != nullptr) {
        return failure(StatusCode::protocol, "its inbox is too small");
      }
      if (limit.passed()) return failure(StatusCode::timeout, "no answer on the Unix socket");
    }
    if (complete) return {};
    STRETTO_RETURN_IF_ERROR(timer.judge(shortage));
    STRETTO_RETURN_IF_ERROR(limit.look());
    wait_for_any(channels);
  }
}

}  // namespace

Result<Endpoint::Parts> attach(Rank self, std::vector<FileDescriptor> sockets,
                               const WaitLimit& limit) {
  const int ranks = static_cast<int>(sockets.size());
  Channels channels;
  for (FileDescriptor& socket : sockets) {
    channels.push_back(socket.valid() ? std::make_shared<Channel>(std::move(socket)) : nullptr);
  }
  // Without peers on this host nothing is shared, and the system need not support it.
  if (std::ranges::all_of(channels, [](const auto& channel) { return channel == nullptr; })) {
    Endpoint::Parts alone{.rank = self};
    alone.links.resize(channels.size());
    alone.processes.resize(channels.size());
    return alone;
  }
  const auto memory = std::make_shared<ShmMemory>(self, channels);
  Region own;
  STRETTO_RETURN_IF_ERROR(retry_shortages([&] {
    Result<Region> inbox = memory->allocate(Inbox::bytes(ranks));
    if (inbox.ok()) own = std::move(*inbox);
    return inbox.status();
  }));
  for (int r = 0; r < ranks; ++r) {
    const auto& channel = channels[r];
    if (channel == nullptr) continue;
    STRETTO_RETURN_IF_ERROR(retry_shortages([&] { return memory->find_process(r); }));
    channel->send(memory->proof());
  }
  STRETTO_RETURN_IF_ERROR(meet_peers(channels, *memory, Inbox::bytes(ranks), limit));
  Endpoint::Parts parts{.rank = self, .memory = memory};
  for (int r = 0; r < ranks; ++r) {
    const auto& channel = channels[r];
    parts.links.push_back(nullptr);
    parts.processes.emplace_back();
    if (channel == nullptr) continue;
    parts.processes.back() = memory->process_of(r);
    parts.links.back() = std::make_unique<RingLink>(
        RingLink::Parts{.name = "shm",
                        .own = Inbox(own.bytes.data()),
                        .peer = Inbox(memory->resolve(r, kInbox, Inbox::bytes(ranks))),
                        .own_rank = self.value(),
                        .peer_rank = r,
                        .doorbell = std::make_unique<ChannelDoorbell>(r, channel, memory),
                        .memory = {own.owner, memory->hold(r, kInbox)}});
  }
  parts.sleep_flag = std::make_unique<SleepFlag>(Inbox(own.bytes.data()), own.owner);
  return parts;
}

}  // namespace stretto::transport::shm

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/loopback/world.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>

#include "stretto/base/file_descriptor.h"
#include "stretto/transport/loopback/memory.h"
#include "stretto/transport/ring_link.h"

namespace stretto::transport::loopback {
namespace {

// What the ranks of one process share about each rank: its bell, and whether it is gone.
struct Bell {
  void ring() {
    const std::uint64_t one = 1;
    (void)!::write(event.get(), &one, sizeof(one));
  }

  FileDescriptor event;
  std::atomic<bool> closed{false};
};

// Rings another rank's bell through its eventfd.
class EventDoorbell final : public Doorbell {
 public:
  // A rank has one bell but many doorbells: only the one that `watches` gives it to the endpoint.
  EventDoorbell(std::shared_ptr<Bell> own, std::shared_ptr<Bell> peer, bool watches)
      : own_(std::move(own)), peer_(std::move(peer)), watches_(watches) {}
  ~EventDoorbell() override {
    own_->closed.store(true, std::memory_order_release);
    peer_->ring();
  }

  void ring() override { peer_->ring(); }
  int descriptor() const override { return watches_ ? own_->event.get() : -1; }
  void service() override {
    std::uint64_t count = 0;
    (void)!::read(own_->event.get(), &count, sizeof(count));
  }
  bool closed() const override { return peer_->closed.load(std::memory_order_acquire); }

 private:
  std::shared_ptr<Bell> own_;
  std::shared_ptr<Bell> peer_;
  bool watches_;
};

struct World {
  RankVector<std::shared_ptr<Bell>> bells;
  RankVector<Region> inboxes;
  std::shared_ptr<Regions> regions;
};

Status add_rank(World& world, int ranks) {
  auto bell = std::make_shared<Bell>();
  bell->event = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell->event.valid()) return system_status("eventfd");
  world.bells.push_back(std::move(bell));
  STRETTO_ASSIGN_OR_RETURN(Region inbox, PrivateMemory().allocate(Inbox::bytes(ranks)));
  world.inboxes.push_back(std::move(inbox));
  return {};
}

std::unique_ptr<Link> make_link(const World& world, int self, int peer) {
  const bool first = peer == (self == 0 ? 1 : 0);
  const auto& own_memory = world.inboxes[self];
  const auto& peer_memory = world.inboxes[peer];
  return std::make_unique<RingLink>(RingLink::Parts{
      .name = "loopback",
      .own = Inbox(own_memory.bytes.data()),
      .peer = Inbox(peer_memory.bytes.data()),
      .own_rank = self,
      .peer_rank = peer,
      .doorbell = std::make_unique<EventDoorbell>(world.bells[self], world.bells[peer], first),
      .memory = {own_memory.owner, peer_memory.owner}});
}

}  // namespace

Result<std::vector<std::unique_ptr<Endpoint>>> make_world(const WorldOptions& options) {
  World world{.bells = {},
              .inboxes = {},
              .regions = std::make_shared<Regions>(options.ranks, options.hosts)};
  for (int r = 0; r < options.ranks; ++r) {
    STRETTO_RETURN_IF_ERROR(add_rank(world, options.ranks));
  }
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  for (int r = 0; r < options.ranks; ++r) {
    Endpoint::Parts parts{.rank = r};
    for (int peer = 0; peer < options.ranks; ++peer) {
      auto link = peer == r ? nullptr : make_link(world, r, peer);
      if (link != nullptr && options.wrap) link = options.wrap(r, peer, std::move(link));
      parts.links.push_back(std::move(link));
    }
    if (options.shared_memory) parts.memory = std::make_shared<LoopbackMemory>(r, world.regions);
    const auto& inbox = world.inboxes[r];
    parts.sleep_flag = std::make_unique<SleepFlag>(Inbox(inbox.bytes.data()), inbox.owner);
    STRETTO_ASSIGN_OR_RETURN(auto endpoint, Endpoint::create(std::move(parts)));
    endpoints.push_back(std::move(endpoint));
  }
  return endpoints;
}

}  // namespace stretto::transport::loopback

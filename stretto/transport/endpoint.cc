// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/endpoint.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <thread>

#include "stretto/base/check.h"
#include "stretto/base/memory_limit.h"
#include "stretto/base/poll.h"

namespace stretto::transport {
namespace {

// Ranks that share memory see data without a system call; the descriptors of their links tell only
// of doorbells, new regions and death, for which looking now and then is enough.
constexpr unsigned kTurnsPerPoll = 256;
constexpr std::chrono::milliseconds kDrainNap(10);
// No link is asked more often whether its peer is within reach; most want to be asked less often.
constexpr std::chrono::milliseconds kContactCheck(50);
// How much may be allocated without looking at the memory that is left; no region is smaller than
// a page.
constexpr std::size_t kBytesPerLook = 1 << 20;
constexpr std::size_t kLeastBytes = 4096;
constexpr std::uint64_t kWakeEvent = std::numeric_limits<std::uint64_t>::max();
// Between two looks at a data plane beside the links, while this rank sleeps: it has no descriptor.
constexpr std::chrono::milliseconds kPolledPlaneNap(1);
// How long the end of a rank whose last group was destroyed by an exception waits for what it has
// sent by another plane: the program sees the exception only afterwards, and a peer that is stopped
// takes nothing.
constexpr std::chrono::milliseconds kUnwindingTime(500);
// No event tells that a peer's kernel has taken something.
constexpr std::chrono::milliseconds kFinishNap(1);
// Added to the number of a rank: its process has ended.
constexpr std::uint64_t kEndEvent = std::uint64_t{1} << 32;

}  // namespace

Result<std::unique_ptr<Endpoint>> Endpoint::create(Parts parts) {
  std::unique_ptr<Endpoint> endpoint(new Endpoint(std::move(parts)));
  STRETTO_RETURN_IF_ERROR(endpoint->open_poll());
  return endpoint;
}

Endpoint::Endpoint(Parts parts)
    : rank_(parts.rank),
      memory_(std::move(parts.memory)),
      sleep_flag_(std::move(parts.sleep_flag)),
      data_plane_(std::move(parts.data_plane)),
      due_(parts.links.size()),
      processes_(std::move(parts.processes)),
      farewell_time_(parts.farewell_time) {
  if (memory_ == nullptr) memory_ = std::make_shared<PrivateMemory>();
  const std::size_t ranks = parts.links.size();
  for (std::size_t r = 0; r < ranks; ++r) {
    std::unique_ptr<Link> link = std::move(parts.links[r]);
    if (link == nullptr) {
      peers_.push_back(nullptr);
      continue;
    }
    if (!link->needs_poll()) local_links_.push_back(link.get());
    // Bytes that came while the job started make no event.
    due_.insert(r);
    peers_.push_back(std::make_unique<Peer>(
        Peer::Ranks{.self = rank_,
                    .peer = static_cast<int>(r),
                    .count = static_cast<int>(ranks),
                    .peer_name = r < parts.names.size() ? parts.names[r] : std::string()},
        std::move(link), &listener_,
        data_plane_ == nullptr ? nullptr : &data_plane_->of(static_cast<int>(r)),
        &unexpected_count_));
  }
}

Status Endpoint::open_poll() {
  poll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!poll_.valid()) return system_status("epoll_create1");
  wake_event_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_event_.valid()) return system_status("eventfd");
  STRETTO_RETURN_IF_ERROR(watch(poll_.get(), wake_event_.get(), EPOLLIN, kWakeEvent));
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (peers_[r] == nullptr) continue;
    const Link& link = peers_[r]->link();
    const int descriptor = link.descriptor();
    if (descriptor < 0) continue;
    polls_always_ = polls_always_ || link.needs_poll();
    // Events for room in a socket that carries only doorbells are useless, and would wake a sleeper
    // at each doorbell.
    const std::uint32_t room = link.needs_poll() ? std::uint32_t{EPOLLOUT} : 0;
    STRETTO_RETURN_IF_ERROR(
        watch(poll_.get(), descriptor, EPOLLIN | EPOLLRDHUP | EPOLLET | room, r));
  }
  return watch_processes();
}

Status Endpoint::watch_processes() {
  for (std::size_t r = 0; r < processes_.size(); ++r) {
    if (!processes_[r].valid() || peers_[r] == nullptr) continue;
    STRETTO_RETURN_IF_ERROR(
        watch(poll_.get(), processes_[r].descriptor(), EPOLLIN | EPOLLET, kEndEvent + r));
  }
  return {};
}

Endpoint::~Endpoint() {
  listener_ = nullptr;
  if (data_plane_ != nullptr) drain_plane();
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (peers_[r] == nullptr) continue;
    due_.insert(r);
    peers_[r]->leave();
    peers_[r]->flush();
  }
  drain();
  finish_links();
}

// If an exception unwinds the stack, peers that are out of reach or lost are not waited for: the
// program sees the exception only when the communicator has gone. A link of several connections to
// a lost peer may otherwise wait for acknowledgements that never come.
bool Endpoint::is_waited_for(const std::unique_ptr<Peer>& peer) const {
  if (peer == nullptr) return false;
  return !unwinds_ || !(peer->contact().silent || peer->status().code() == StatusCode::peer_lost);
}

void Endpoint::finish_links() {
  while (true) {
    bool done = true;
    for (auto& peer : peers_) {
      const bool has_finished = peer == nullptr || peer->link().finish();
      done = (has_finished || !is_waited_for(peer)) && done;
    }
    if (done) return;
    std::this_thread::sleep_for(kFinishNap);
  }
}

// Waits until the data plane has taken what has been sent: the goodbye goes another way, and must
// not overtake it.
void Endpoint::drain_plane() {
  const Deadline deadline = Deadline::after(
      unwinds_ ? std::min<Duration>(farewell_time_, kUnwindingTime) : farewell_time_);
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    while (peer->status().ok() && peer->plane().has_output() && !deadline.passed()) {
      check_contacts(Clock::now());  // A peer out of reach takes nothing any more.
      if (!progress()) std::this_thread::sleep_for(kPolledPlaneNap);
    }
  }
}

// Waits until what has been queued is in the links. Reads meanwhile: two ranks that leave at the
// same time wait for each other's room.
void Endpoint::drain() {
  std::uint64_t written_before = 0;
  Deadline deadline = Deadline::after(farewell_time_);
  while (true) {
    std::uint64_t written = 0;
    bool left = false;
    for (const auto& peer : peers_) {
      if (peer == nullptr) continue;
      written += peer->written_bytes();
      left = left || (is_waited_for(peer) && peer->has_output());
    }
    if (written != written_before) deadline = Deadline::after(farewell_time_);
    written_before = written;
    if (!left || deadline.passed()) return;
    begin_sleep();
    // Not for long, since a link of shared memory tells only once that it has room.
    if (!progress()) sleep(Deadline::after(kDrainNap));
    end_sleep();
  }
}

Endpoint::PeerStatus Endpoint::peer_status(Rank rank) const {
  const Peer* of = peer(rank);
  if (of == nullptr) return {};
  return {.status = of->status(), .left = of->left()};
}

void Endpoint::send(Request& request) {
  Peer* to = peer(request.peer);
  STRETTO_CHECK(to != nullptr, "rank {} sends to itself", rank_.value());
  // Usually the link has room: the message is on its way before this returns.
  const bool idle = !to->has_output();
  due_.insert(static_cast<std::size_t>(request.peer));
  to->send(request);
  if (idle) to->flush();
}

void Endpoint::recv(Request& request) {
  Peer* from = peer(request.peer);
  STRETTO_CHECK(from != nullptr, "rank {} receives from itself", rank_.value());
  due_.insert(static_cast<std::size_t>(request.peer));
  from->recv(request);
}

bool Endpoint::has_arrived(Rank rank, const MessageKey& key) const {
  const Peer* from = peer(rank);
  return from != nullptr && from->plane().has_arrived(key);
}

Status Endpoint::find_conflict(std::uint64_t group, std::uint32_t sequence,
                               const OperationDescriptor& operation) const {
  // Mostly there are no unexpected messages, and there may be hundreds of peers.
  if (data_plane_ == nullptr && unexpected_count_ == 0) return {};
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    const auto other = peer->plane().find_conflict(group, sequence, operation);
    if (!other) continue;
    return mismatch_status({other->from, other->operation, sequence}, {rank_, operation, sequence},
                           other->key.segment);
  }
  return {};
}

// Calls `say` for all of `ranks` but this rank itself.
template <class Say>
void Endpoint::tell(std::span<const Rank> ranks, const Say& say) {
  for (const Rank rank : ranks) {
    Peer* const to = peer(rank);
    if (to == nullptr) continue;
    due_.insert(static_cast<std::size_t>(rank));
    say(*to);
    to->flush();
  }
}

void Endpoint::abandon(std::uint64_t group, std::span<const Rank> members, const Status& reason) {
  tell(members, [&](Peer& to) { to.abandon(group, reason); });
}

void Endpoint::send_agreement(Rank rank, const MessageKey& key, ConstByteSpan payload) {
  tell({&rank, 1}, [&](Peer& to) { to.send_agreement(key, payload); });
}

void Endpoint::forget(std::uint64_t group, std::span<const Rank> members, const Status& reason,
                      Farewell farewell) {
  unwinds_ = farewell == Farewell::unwinding;
  tell(members, [&](Peer& to) { to.forget(group, reason, farewell); });
}

void Endpoint::announce_abort(std::uint64_t group, std::span<const Rank> members,
                              const Status& reason, GroupStage stage) {
  tell(members, [&](Peer& to) { to.send_abort(group, reason, stage); });
}

void Endpoint::inquire(Rank rank, std::uint64_t group, std::uint32_t sequence,
                       const OperationDescriptor& operation) {
  tell({&rank, 1}, [&](Peer& to) { to.inquire(group, sequence, operation); });
}

std::size_t Endpoint::half_forgotten_groups() const {
  std::size_t count = 0;
  for (const auto& peer : peers_) {
    if (peer != nullptr) count += peer->half_forgotten();
  }
  return count;
}

// Note [due]
//
// With hundreds of connections most are idle in a turn, and looking at each would take longer than
// whatever the others have to do. So a turn visits the peers that are due: after an event of their
// descriptors, after a call that concerns them (to send, to receive, to tell), after each look at
// the connections (check_contacts), which may find what made no event, and for as long as
// Peer::needs_progress() says so: always where memory is shared, since what comes there makes no
// event. A peer that has something to do in Peer::progress() but is not due waits until the next
// look at the connections, 50 ms or more in each exchange: that is slow, but fails no test of whole
// jobs. So whatever is added to Peer::progress() must be added to needs_progress(), too. A function
// that gives a Peer something to do must make it due. endpoint_test.cc tests each of these.

bool Endpoint::progress() {
  bool moved = false;
  if (polls_always_ || ++turns_ % kTurnsPerPoll == 0) moved = poll_descriptors();
  // The links first, then the plane: when a peer says by its link that it leaves, all that it had
  // sent by another plane has been counted, and Peer::hear() waits until that has been read.
  awaits_obituary_ = false;
  due_.for_each([&](std::size_t r) {
    Peer& peer = *peers_[r];
    moved = peer.progress() || moved;
    awaits_obituary_ = awaits_obituary_ || peer.awaits_obituary();
    if (!peer.needs_progress()) due_.erase(r);
  });
  return (data_plane_ != nullptr && progress_plane()) || moved;
}

bool Endpoint::progress_plane() {
  const bool moved = data_plane_->progress(unexpected_);
  for (; !unexpected_.empty(); unexpected_.pop()) {
    const UnexpectedMessage message = unexpected_.front();
    if (listener_ != nullptr)
      listener_->unexpected_message(message.from, message.key, message.operation);
  }
  return moved;
}

// Serves what the descriptors report. Returns whether a link may have more to do than before.
bool Endpoint::poll_descriptors() {
  memory_->service();
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool served = false;
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    const std::uint64_t index = event.data.u64;
    if (index == kWakeEvent) continue;
    served = true;
    const bool has_ended = index >= kEndEvent;
    const std::uint64_t rank = has_ended ? index - kEndEvent : index;
    due_.insert(rank);
    if (has_ended) {
      peers_[rank]->process_ended(processes_[rank].number());
    } else {
      peers_[rank]->link().service(event.events);
    }
  }
  return served;
}

void Endpoint::check_contacts(TimePoint now) {
  if (now < next_contact_check_) return;
  next_contact_check_ = now + kContactCheck;
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (peers_[r] == nullptr) continue;
    due_.insert(r);
    peers_[r]->check_contact(now);
  }
  for (auto& peer : peers_) {
    if (peer == nullptr || !peer->contact().lost || !peer->status().ok()) continue;
    peer->lose(silence_of(*peer));
  }
}

Link::Contact Endpoint::contact(Rank rank) const {
  const auto& peer = peers_[rank];
  return peer == nullptr ? Link::Contact() : peer->contact();
}

// Also names the others that are silent: a cable or a host takes several ranks away, though not all
// are noticed in the same turn.
Status Endpoint::silence_of(const Peer& silent) const {
  const Duration silence = silent.contact().silence;
  std::string others;
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    const Peer* other = peers_[r].get();
    if (other == nullptr || other == &silent || other->contact().silence < silence / 2) continue;
    others += fmt::format("{}{}", others.empty() ? ", nor from rank " : ", ", r);
  }
  return status_of(StatusCode::peer_lost,
                   "nothing has come back from it for {:.1f} s{}{}: the network to it, or its "
                   "host, is down; STRETTO_NETWORK_TIMEOUT says how long an outage may last",
                   seconds(silence), silent.contact().heard ? ", though it is still heard" : "",
                   others);
}

void Endpoint::begin_sleep() {
  ++sleepers_;
  if (sleep_flag_ != nullptr) sleep_flag_->raise();
  poll_all_next();
}

void Endpoint::poll_all_next() { turns_ = kTurnsPerPoll - 1; }

void Endpoint::sleep(Deadline until) {
  // A sleep is bounded, so that a wake-up that went to another sleeper of this process costs at
  // most this, and so that a file that has found no descriptor (ShmMemory) is soon looked for
  // again, though no event tells that there is one. The caller checks its deadline.
  constexpr std::chrono::milliseconds kUndisturbed(100);
  const std::chrono::milliseconds sleep_max =
      data_plane_ != nullptr ? kPolledPlaneNap : kUndisturbed;
  // Less than a second, in nanoseconds: a rank that expects a message wakes up just before it.
  const timespec left{.tv_sec = 0,
                      .tv_nsec = std::min<Duration>(until.remaining(), sleep_max).count()};
  // Waiting on the epoll descriptor tells that there are events without taking them: they are edge
  // triggered, and the next progress() needs them.
  pollfd waiting{.fd = poll_.get(), .events = POLLIN, .revents = 0};
  ::ppoll(&waiting, 1, &left, nullptr);
}

void Endpoint::end_sleep() {
  if (--sleepers_ > 0) return;
  std::uint64_t count = 0;
  // It does not matter if there is nothing to read.
  (void)!::read(wake_event_.get(), &count, sizeof(count));
  if (sleep_flag_ != nullptr) sleep_flag_->lower();
}

void Endpoint::wake() {
  const std::uint64_t one = 1;
  (void)!::write(wake_event_.get(), &one, sizeof(one));
}

Result<Region> Endpoint::allocate(std::size_t bytes) {
  if (!checks_memory_) return memory_->allocate(bytes);
  // Looking takes longer than allocating a few pages does.
  const std::size_t paid_bytes = std::max(bytes, kLeastBytes);
  if (paid_bytes >= kBytesPerLook - unseen_bytes_) {
    STRETTO_RETURN_IF_ERROR(
        check_memory_left(rank_, bytes, find_memory_left(memory_->mapped_bytes())));
    unseen_bytes_ = 0;
  } else {
    unseen_bytes_ += paid_bytes;
  }
  return memory_->allocate(bytes);
}

void Endpoint::notify(Rank rank) {
  if (Peer* to = peer(rank)) to->link().notify();
}

bool Endpoint::sleeps(Rank rank) const {
  const auto& to = peers_[rank];
  return to != nullptr && to->link().peer_sleeps();
}

bool Endpoint::shares_core() {
  const int core = ::sched_getcpu();
  if (core < 0 || sleep_flag_ == nullptr) return false;
  const auto number = static_cast<std::uint32_t>(core);
  sleep_flag_->note_core(number);
  return std::ranges::any_of(local_links_,
                             [&](const Link* link) { return link->peer_waits_on(number); });
}

std::string Endpoint::link_name(Rank rank) const {
  const auto& peer = peers_[rank];
  return peer == nullptr ? "self" : std::string(peer->link().name());
}

}  // namespace stretto::transport

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/mesh.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/log.h"
#include "stretto/base/rank_vector.h"
#include "stretto/bootstrap/acceptor.h"
#include "stretto/bootstrap/authenticating_listener.h"
#include "stretto/bootstrap/host_listener.h"
#include "stretto/bootstrap/own_address.h"
#include "stretto/bootstrap/rank_card.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/transport/shortage.h"

namespace stretto::bootstrap {
namespace {

// For a data plane at the end: unlike a link's, its accepted messages may not outlive this process.
constexpr std::chrono::seconds kPlaneFarewellTime(10);
// The rank that listens for this host answers within this time, if Unix sockets work.
constexpr std::chrono::seconds kRegistrationTime(5);
// Notes in the store: the socket at which a host's ranks register; this rank has been reached by
// all.
constexpr const char* kHostListener = "host-listener";
constexpr const char* kReached = "reached";

bool offers(const RankCard& rank, std::string_view way) {
  return fmt::format(" {} ", rank.links).find(fmt::format(" {} ", way)) != std::string::npos;
}

// Joins the mesh by exchanges through the store. Ranks first exchange cards, which say where each
// rank is and which ways it offers. Then, for each provider in turn, they exchange addresses and
// say which connections succeeded. In each pair the higher rank connects, so rank 0 only accepts,
// and ranks cannot wait in a circle.
class Joiner {
 public:
  Joiner(JoinNotes& notes, const MeshOptions& options)
      : notes_(notes), options_(options), limit_(notes.limit()) {
    self_ = {.rank = options.rank, .configuration = options.configuration};
    sockets_.resize(options.links.size());
    for (auto& sockets : sockets_) sockets.resize(static_cast<std::size_t>(options.size));
    notes_.end_waits_by([this] { return cannot_accept(); });
  }
  ~Joiner() { notes_.end_waits_by(nullptr); }
  Joiner(const Joiner&) = delete;
  Joiner& operator=(const Joiner&) = delete;

  Result<Mesh> join();

 private:
  // A provider and the number of one of its connections per peer.
  struct Way {
    std::size_t provider;
    int stream;
  };
  // The name of the way in keys of the store.
  std::string name_of(const Way& way) const {
    const std::string_view name = options_.links[way.provider]->name();
    return way.stream == 0 ? std::string(name) : fmt::format("{}.{}", name, way.stream);
  }
  Status exchange_cards();
  Status check_last_way(int rank) const;
  Status connect_by(const Way& way);
  Status connect_to(const Way& way, int rank, const std::string& address);
  Status take_connections(const Way& way, const std::set<int>& higher, const std::string& address);
  // Why other ranks cannot connect to this one: then it would wait for their notes in vain.
  Status cannot_accept() const {
    const Status of_host = host_listener_ != nullptr ? host_listener_->failure() : Status();
    return of_host.ok() && acceptor_ != nullptr ? acceptor_->failure() : of_host;
  }
  Result<Mesh> make_endpoint();
  std::set<int> ranks_sharing_a_listener(std::size_t provider) const;
  Status start_host_listener(std::size_t provider, std::set<int> ranks);
  Status end_host_listener();
  Result<Reception> receive_at(std::size_t provider, const std::string& bind_address);
  Result<Reception> receive_at_own(LinkProvider& provider, const std::string& bind_address) const;
  Status not_connected(int rank, const Status& why) const;
  static std::string ends_of(std::span<const FileDescriptor> sockets);
  void log_link(int rank);
  std::string why_not(const LinkProvider& provider, int rank) const;
  bool has_other_way(const Way& way, int rank) const;
  bool has_earlier_way(std::size_t provider, int rank) const;
  Result<transport::ProcessHandle> find_process(int rank) const;
  bool wants(const Way& way, int rank);
  bool is_connected(int rank) const {
    return std::ranges::any_of(sockets_, [&](const auto& all) { return !all[rank].empty(); });
  }

  JoinNotes& notes_;
  const MeshOptions& options_;
  const WaitLimit limit_;
  Identity self_;
  RankVector<RankCard> cards_;
  std::vector<LinkProvider::Sockets> sockets_;   // Per provider.
  std::unique_ptr<HostListener> host_listener_;  // If this rank listens for its host.
  std::unique_ptr<Acceptor> acceptor_;           // For the way that is being tried.
  std::set<std::string> warned_of_;              // Why ranks of this machine share no memory.
};

Result<Mesh> Joiner::join() {
  STRETTO_RETURN_IF_ERROR(exchange_cards());
  for (std::size_t i = 0; i < options_.links.size(); ++i) {
    const int streams = options_.links[i]->streams();
    for (int s = 0; s < streams; ++s) STRETTO_RETURN_IF_ERROR(connect_by({i, s}));
  }
  STRETTO_RETURN_IF_ERROR(end_host_listener());
  return make_endpoint();
}

Status Joiner::exchange_cards() {
  RankCard card = local_card();
  for (const auto& provider : options_.links) {
    card.links += fmt::format("{}{}", card.links.empty() ? "" : " ", provider->name());
    card.streams = std::max(card.streams, provider->streams());
  }
  if (auto store = parse_host_port(notes_.store().server()); store.ok()) {
    auto route = route_to(store->host, store->port, limit_);
    if (route.ok()) {
      card.address = std::move(route->own);
      card.store = std::move(route->other);
    } else {
      log(LogLevel::warning,
          "rank {} tells the others no address of its own, since it finds no way to the store: {}",
          options_.rank, route.status().message());
    }
  }
  STRETTO_ASSIGN_OR_RETURN(const RankVector<std::string> texts,
                           notes_.exchange("card", print(card)));
  for (int r = 0; r < options_.size; ++r) {
    Result<RankCard> parsed = parse_card(texts[r]);
    if (!parsed.ok()) return parsed.status().with_context(fmt::format("joining rank {}", r));
    cards_.push_back(std::move(*parsed));
    STRETTO_RETURN_IF_ERROR(check_last_way(r));
  }
  return {};
}

// The last way can connect any two ranks, so all ranks must offer it.
Status Joiner::check_last_way(int rank) const {
  const std::string_view last = options_.links.back()->name();
  const RankCard& peer = cards_[rank];
  if (offers(peer, last)) return {};
  return {StatusCode::refused,
          fmt::format("rank {} offers to be connected by {}, this rank {} to connect hosts by {}: "
                      "STRETTO_ENCRYPTION must be the same on all ranks; refusing to join",
                      rank, peer.links, options_.rank, last),
          rank};
}

// The ranks of this host, including this one, for which the first of them listens; empty if each
// listens for itself. All of them get the same result from the cards: they share memory with the
// same ranks, so the last rank that has to connect to any of them is the same.
std::set<int> Joiner::ranks_sharing_a_listener(std::size_t provider) const {
  if (!options_.links[provider]->is_shared_by_host()) return {};
  int last = options_.size - 1;
  while (last > options_.rank && has_earlier_way(provider, last)) --last;
  const RankCard& own = cards_[options_.rank];
  std::set<int> ranks;
  for (int r = 0; r < last; ++r) {
    const RankCard& card = cards_[r];
    if (card.machine == own.machine && card.network == own.network && card.links == own.links) {
      ranks.insert(r);
    }
  }
  return ranks.size() > 1 && ranks.contains(options_.rank) ? ranks : std::set<int>();
}

Status Joiner::start_host_listener(std::size_t provider, std::set<int> ranks) {
  LinkProvider& links = *options_.links[provider];
  const auto listen = [&links, deadline = limit_.deadline()](const std::string& bind_address) {
    return links.listen(bind_address, deadline);
  };
  STRETTO_ASSIGN_OR_RETURN(host_listener_, HostListener::start({.ranks = std::move(ranks),
                                                                .key = options_.key,
                                                                .purpose = links.purpose(),
                                                                .self = self_,
                                                                .listen = listen}));
  return notes_.tell(kHostListener, host_listener_->name());
}

// A rank that listens for others does so until all of these have been reached.
Status Joiner::end_host_listener() {
  std::set<int> ranks;
  for (std::size_t i = 0; i < options_.links.size(); ++i) ranks.merge(ranks_sharing_a_listener(i));
  if (ranks.empty()) return {};
  if (host_listener_ == nullptr) return notes_.tell(kReached, "yes");
  ranks.erase(options_.rank);
  const std::vector<int> others(ranks.begin(), ranks.end());
  STRETTO_RETURN_IF_ERROR(notes_.get_all(kReached, others).status());
  host_listener_.reset();
  return {};
}

Result<Reception> Joiner::receive_at_own(LinkProvider& provider,
                                         const std::string& bind_address) const {
  STRETTO_ASSIGN_OR_RETURN(LinkProvider::Listener listener, provider.listen(bind_address, limit_));
  STRETTO_ASSIGN_OR_RETURN(auto connections,
                           AuthenticatingListener::create({.listener = std::move(listener.socket),
                                                           .key = options_.key,
                                                           .purpose = provider.purpose(),
                                                           .self = self_}));
  return Reception{std::move(connections), std::move(listener.address)};
}

// Listens by the rank that listens for this host, or by this rank itself if there is none or it
// cannot do so.
Result<Reception> Joiner::receive_at(std::size_t provider, const std::string& bind_address) {
  LinkProvider& links = *options_.links[provider];
  const std::set<int> sharing = ranks_sharing_a_listener(provider);
  if (sharing.empty()) return receive_at_own(links, bind_address);
  const int first = *sharing.begin();
  if (first == options_.rank && host_listener_ == nullptr) {
    STRETTO_RETURN_IF_ERROR(start_host_listener(provider, sharing));
  }
  STRETTO_ASSIGN_OR_RETURN(const std::string name, notes_.get(kHostListener, first));
  Identity visitor = self_;
  visitor.target = first;
  Result<Reception> handed =
      register_at_host(name, bind_address, options_.key, visitor, limit_.within(kRegistrationTime));
  if (handed.ok()) return handed;
  STRETTO_RETURN_IF_ERROR(limit_.look());
  log(LogLevel::warning,
      "rank {} listens on a port of its own, as rank {}, which listens for this host, cannot do it "
      "for this rank: {}",
      options_.rank, first, handed.status().message());
  return receive_at_own(links, bind_address);
}

Status Joiner::not_connected(int rank, const Status& why) const {
  const RankCard& peer = cards_[rank];
  const Status status =
      why.with_context(fmt::format("joining rank {} ({} pid {})", rank, peer.node, peer.pid));
  const RankCard& own = cards_[options_.rank];
  const bool is_elsewhere = peer.machine != own.machine || peer.network != own.network;
  if (status.code() != StatusCode::timeout || !is_elsewhere) return status;
  return status_of(StatusCode::timeout,
                   "{}; if that is not the network between the hosts, name it in STRETTO_NETWORK; "
                   "if a firewall is between them, let one of STRETTO_PORTS through",
                   status.message());
}

// Why `provider` cannot connect this rank to `rank`; empty: it may.
std::string Joiner::why_not(const LinkProvider& provider, int rank) const {
  const RankCard& peer = cards_[rank];
  if (!offers(peer, provider.name())) return "switched off there";
  return provider.why_not(cards_[options_.rank], peer);
}

// Whether a pair that `way` does not connect can be connected by a later provider.
bool Joiner::has_other_way(const Way& way, int rank) const {
  if (way.stream > 0) return false;
  for (std::size_t i = way.provider + 1; i < options_.links.size(); ++i) {
    if (why_not(*options_.links[i], rank).empty()) return true;
  }
  return false;
}

// Whether an earlier provider connects this rank and `rank`, as far as cards tell.
bool Joiner::has_earlier_way(std::size_t provider, int rank) const {
  for (std::size_t i = 0; i < provider; ++i) {
    if (why_not(*options_.links[i], rank).empty()) return true;
  }
  return false;
}

// Whether this rank and `rank` connect in this way. Both come to the same result.
bool Joiner::wants(const Way& way, int rank) {
  const LinkProvider& provider = *options_.links[way.provider];
  if (way.stream == 0) return !is_connected(rank) && why_not(provider, rank).empty();
  const RankCard& peer = cards_[rank];
  return way.stream < std::min(provider.streams(), peer.streams) &&
         !sockets_[way.provider][rank].empty();
}

// The process of a rank, if this process can see it under the same pid. A rank of another host is
// not watched, even on the same machine, because its last messages may still be on their way when
// it has ended.
Result<transport::ProcessHandle> Joiner::find_process(int rank) const {
  const RankCard& own = cards_[options_.rank];
  const RankCard& other = cards_[rank];
  const bool is_visible = own.machine == other.machine && own.network == other.network &&
                          !own.pid_namespace.empty() && own.pid_namespace == other.pid_namespace;
  return transport::ProcessHandle::of_number(is_visible ? other.pid : 0);
}

// Connects to the lower ranks, and takes the connections of the higher ones. If a pair has another
// way, the higher rank says whether this one has succeeded, so that both go on alike.
Status Joiner::connect_by(const Way& way) {
  LinkProvider& provider = *options_.links[way.provider];
  const auto concerned = [&](int r) { return wants(way, r); };
  std::set<int> higher;
  std::string own_address;
  for (int r = options_.rank + 1; r < options_.size; ++r) {
    if (concerned(r)) higher.insert(r);
  }
  if (!higher.empty()) {
    STRETTO_ASSIGN_OR_RETURN(const std::string bind_address,
                             provider.bind_address(options_.rank, way.stream, cards_));
    STRETTO_ASSIGN_OR_RETURN(Reception reception, receive_at(way.provider, bind_address));
    STRETTO_ASSIGN_OR_RETURN(acceptor_, Acceptor::start(std::move(reception.connections), higher));
    own_address = std::move(reception.address);
    STRETTO_RETURN_IF_ERROR(notes_.tell(name_of(way), own_address));
  }
  // Starts with the next lower rank, so that each rank starts with another one, and none has to
  // accept all at once.
  std::vector<int> lower;
  for (int r = options_.rank - 1; r >= 0; --r) {
    if (concerned(r)) lower.push_back(r);
  }
  STRETTO_ASSIGN_OR_RETURN(const auto addresses, notes_.get_all(name_of(way), lower));
  std::string succeeded;
  bool is_awaited = false;
  for (std::size_t i = 0; i < lower.size(); ++i) {
    is_awaited = is_awaited || has_other_way(way, lower[i]);
    STRETTO_RETURN_IF_ERROR(connect_to(way, lower[i], addresses[i]));
    if (is_connected(lower[i])) succeeded += fmt::format("{} ", lower[i]);
  }
  const std::string told = fmt::format("{}-connected", provider.name());
  if (is_awaited) STRETTO_RETURN_IF_ERROR(notes_.tell(told, succeeded + "."));
  return take_connections(way, higher, own_address);
}

// Takes the connections of the `higher` ranks that arrive at `address`. Ranks that have another way
// are expected only if they say that they have succeeded in this one.
Status Joiner::take_connections(const Way& way, const std::set<int>& higher,
                                const std::string& address) {
  std::vector<int> telling;
  for (const int r : higher) {
    if (has_other_way(way, r)) telling.push_back(r);
  }
  const LinkProvider& provider = *options_.links[way.provider];
  const std::string told = fmt::format("{}-connected", provider.name());
  STRETTO_ASSIGN_OR_RETURN(const auto texts, notes_.get_all(told, telling));
  const std::string own = fmt::format("{} ", options_.rank);
  std::set<int> expected = higher;
  for (std::size_t i = 0; i < telling.size(); ++i) {
    const bool has_come =
        texts[i].starts_with(own) || texts[i].find(" " + own) != std::string::npos;
    if (!has_come) expected.erase(telling[i]);
  }
  for (const int r : expected) {
    Result<FileDescriptor> socket = acceptor_->take(r, limit_);
    if (!socket.ok()) return not_connected(r, socket.status().with_context(address));
    sockets_[way.provider][r].push_back(std::move(*socket));
  }
  acceptor_.reset();
  return {};
}

// Fails if `rank` cannot be reached and has no other way.
Status Joiner::connect_to(const Way& way, int rank, const std::string& address) {
  LinkProvider& provider = *options_.links[way.provider];
  FileDescriptor first;
  if (has_other_way(way, rank)) {
    Result<FileDescriptor> reached = provider.connect(address, limit_);
    if (!reached.ok()) {
      STRETTO_RETURN_IF_ERROR(limit_.look());
      log(LogLevel::warning, "no {} to rank {}: {}", provider.name(), rank,
          reached.status().message());
      return {};
    }
    first = std::move(*reached);
  }
  Identity visitor = self_;
  visitor.target = rank;
  Result<FileDescriptor> socket = connect_and_greet(
      [&] {
        return first.valid() ? Result<FileDescriptor>(std::move(first))
                             : provider.connect(address, limit_);
      },
      [&](int fd) {
        return handshake_as_client(fd, options_.key, provider.purpose(), visitor, limit_).status();
      },
      limit_);
  // A refusal is final, as another way would be refused as well.
  if (!socket.ok()) return not_connected(rank, socket.status());
  sockets_[way.provider][rank].push_back(std::move(*socket));
  return {};
}

// For each connection through a network: " from 10.0.4.7 (eth1) to 10.0.4.8".
std::string Joiner::ends_of(std::span<const FileDescriptor> sockets) {
  std::string ends;
  if (!log_enabled(LogLevel::info)) return ends;
  for (const FileDescriptor& socket : sockets) {
    const Result<std::string> own = local_host(socket.get());
    const Result<std::string> other = peer_host(socket.get());
    if (!own.ok() || !other.ok()) continue;
    ends += fmt::format("{} from {} to {}", ends.empty() ? "" : ",", with_interface(own.value()),
                        other.value());
  }
  return ends;
}

void Joiner::log_link(int rank) {
  const RankCard& card = cards_[rank];
  std::size_t used = 0;
  while (sockets_[used][rank].empty()) ++used;
  const std::string_view name = options_.links[used]->name();
  if (used == 0) {
    log(LogLevel::info, "rank {} ({} pid {}): {}{}", rank, card.node, card.pid, name,
        ends_of(sockets_[used][rank]));
    return;
  }
  const LinkProvider& preferred = *options_.links.front();
  const std::string reason = why_not(preferred, rank);
  // Within one machine this may be unintended, so it is a warning, once for each reason.
  const bool surprising =
      card.machine == cards_[options_.rank].machine && warned_of_.insert(reason).second;
  log(surprising ? LogLevel::warning : LogLevel::info,
      "ranks {} and {} ({} pid {}) are connected by {}{}, not by {}: {}", options_.rank, rank,
      card.node, card.pid, name, ends_of(sockets_[used][rank]), preferred.name(),
      reason.empty() ? "the connection failed" : reason);
}

Result<Mesh> Joiner::make_endpoint() {
  Mesh mesh;
  const RankCard& own = cards_[options_.rank];
  ProcessorSet processors = own.processors;
  for (int r = 0; r < options_.size; ++r) {
    const auto& card = cards_[r];
    mesh.names.push_back(fmt::format("{} pid {}", card.node, card.pid));
    const auto host = std::ranges::find_if(cards_, [&](const RankCard& other) {
      return other.machine == card.machine && other.network == card.network;
    });
    mesh.hosts.push_back(static_cast<std::int32_t>(host - cards_.begin()));
    if (r == options_.rank) continue;
    if (card.machine == own.machine) {
      ++mesh.local_ranks;
      processors |= card.processors;
    }
    log_link(r);
  }
  mesh.local_cores = usable_cores(processors);
  transport::Endpoint::Parts parts{.rank = options_.rank};
  parts.links = RankVector<std::unique_ptr<transport::Link>>(options_.size);
  parts.processes = RankVector<transport::ProcessHandle>(options_.size);
  for (std::size_t i = 0; i < options_.links.size(); ++i) {
    STRETTO_RETURN_IF_ERROR(options_.links[i]->make_links(parts, std::move(sockets_[i]), limit_));
  }
  for (int r = 0; r < options_.size; ++r) {
    transport::ProcessHandle& of_rank = parts.processes[r];
    if (r == options_.rank || of_rank.valid()) continue;
    STRETTO_RETURN_IF_ERROR(transport::retry_shortages([&] {
      Result<transport::ProcessHandle> process = find_process(r);
      if (process.ok()) of_rank = std::move(*process);
      return process.status();
    }));
  }
  parts.names = mesh.names;
  if (options_.make_data_plane) {
    STRETTO_ASSIGN_OR_RETURN(parts.data_plane, options_.make_data_plane());
    parts.farewell_time = kPlaneFarewellTime;
  }
  STRETTO_ASSIGN_OR_RETURN(mesh.endpoint, transport::Endpoint::create(std::move(parts)));
  return mesh;
}

}  // namespace

Result<Mesh> connect_mesh(JoinNotes& notes, const MeshOptions& options) {
  return Joiner(notes, options).join();
}

}  // namespace stretto::bootstrap

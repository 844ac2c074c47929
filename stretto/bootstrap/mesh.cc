// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/mesh.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <functional>

#include <fmt/format.h>

#include "stretto/base/log.h"
#include "stretto/bootstrap/acceptor.h"
#include "stretto/bootstrap/peer_user.h"
#include "stretto/bootstrap/rank_card.h"
#include "stretto/bootstrap/resolve.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/transport/shm/host.h"
#include "stretto/transport/tcp/link.h"

namespace stretto::bootstrap {
namespace {

// A rank that is there has its Unix socket open.
constexpr Duration kUnixTime = std::chrono::seconds(5);

// Joining, in three exchanges through the store: cards (who is where), which Unix connections have
// succeeded, and TCP ports for the rest. In each pair the higher rank connects, so rank 0 only
// accepts and nobody waits in a circle.
class Joiner {
 public:
  Joiner(JoinNotes& notes, const MeshOptions& options)
      : notes_(notes), options_(options), limit_(notes.limit()) {
    self_ = {.rank = options.rank, .configuration = options.configuration};
    unix_sockets_.resize(static_cast<std::size_t>(options.size));
    tcp_sockets_.resize(static_cast<std::size_t>(options.size));
    notes_.end_waits_by([this] { return cannot_accept(); });
  }
  ~Joiner() { notes_.end_waits_by(nullptr); }
  Joiner(const Joiner&) = delete;
  Joiner& operator=(const Joiner&) = delete;

  Result<Mesh> join();

 private:
  Status exchange_cards();
  Status connect_unix();
  Status connect_tcp_rest();
  // Who cannot connect to this rank does not tell it what it is waiting for.
  Status cannot_accept() const {
    if (unix_acceptor_ != nullptr) STRETTO_RETURN_IF_ERROR(unix_acceptor_->failure());
    return tcp_acceptor_ != nullptr ? tcp_acceptor_->failure() : Status();
  }
  Result<Mesh> make_endpoint();
  Result<std::unique_ptr<Acceptor>> accept_from(std::set<int> ranks, FileDescriptor listener,
                                                Purpose purpose) const;
  Result<FileDescriptor> prove_key(
      int rank, Purpose purpose,
      const std::function<Result<FileDescriptor>()>& connect_to_rank) const;
  void log_link(int rank);
  bool same_network(int rank) const;
  Result<transport::ProcessHandle> find_process(int rank) const;
  std::string why_not_shared(int rank) const;
  Result<std::string> get(const std::string& key, int rank) {
    return notes_.get(options_.prefix + key, rank);
  }
  Result<std::string> own_address() const;
  Status set(const std::string& key, const std::string& value) {
    return notes_.set(options_.prefix + key, value);
  }
  FileDescriptor& unix_socket(int rank) { return unix_sockets_[static_cast<std::size_t>(rank)]; }
  FileDescriptor& tcp_socket(int rank) { return tcp_sockets_[static_cast<std::size_t>(rank)]; }

  JoinNotes& notes_;
  const MeshOptions& options_;
  const WaitLimit limit_;
  Identity self_;
  std::vector<RankCard> cards_;
  std::string unix_name_;
  std::unique_ptr<Acceptor> unix_acceptor_;
  std::unique_ptr<Acceptor> tcp_acceptor_;
  std::vector<FileDescriptor> unix_sockets_;
  std::vector<FileDescriptor> tcp_sockets_;
};

std::string random_name() {
  Result<JobKey> random = JobKey::generate();
  // A name that cannot be guessed and that no other machine has.
  return random.ok() ? "stretto-" + random->hexadecimal().substr(0, 32) : std::string();
}

// The local address from which `host` is reached: what peers that also reach it can connect to.
Result<std::string> local_address_towards(const std::string& host, int port,
                                          const WaitLimit& limit) {
  const Result<Addresses> addresses = resolve(host, port, limit);
  if (!addresses.ok()) return addresses.status();
  const addrinfo* found = addresses.value().get();
  const FileDescriptor probe(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Connecting a datagram socket sends nothing; it only asks the kernel for the route.
  if (!probe.valid() || ::connect(probe.get(), found->ai_addr, found->ai_addrlen) != 0) {
    return system_status(fmt::format("finding the way to {}", host));
  }
  return local_host(probe.get());
}

Result<Mesh> Joiner::join() {
  STRETTO_RETURN_IF_ERROR(exchange_cards());
  STRETTO_RETURN_IF_ERROR(connect_unix());
  STRETTO_RETURN_IF_ERROR(connect_tcp_rest());
  return make_endpoint();
}

Status Joiner::exchange_cards() {
  RankCard card = local_card();
  if (options_.shared_memory) {
    unix_name_ = random_name();
    Result<FileDescriptor> listener = listen_unix_abstract(unix_name_);
    if (!listener.ok()) return listener.status();
    card.unix_name = unix_name_;
    std::set<int> higher;
    for (int r = options_.rank + 1; r < options_.size; ++r) higher.insert(r);
    auto acceptor = accept_from(std::move(higher), std::move(*listener), Purpose::mesh_unix);
    if (!acceptor.ok()) return acceptor.status();
    unix_acceptor_ = std::move(*acceptor);
  } else {
    card.unix_name = "none";
  }
  STRETTO_RETURN_IF_ERROR(set(fmt::format("card/{}", options_.rank), print(card)));
  for (int r = 0; r < options_.size; ++r) {
    Result<std::string> text = get("card", r);
    if (!text.ok()) return text.status();
    Result<RankCard> parsed = parse_card(*text);
    if (!parsed.ok()) return parsed.status().with_context(fmt::format("joining rank {}", r));
    cards_.push_back(std::move(*parsed));
  }
  return {};
}

// Null: nobody is to connect to this rank.
Result<std::unique_ptr<Acceptor>> Joiner::accept_from(std::set<int> ranks, FileDescriptor listener,
                                                      Purpose purpose) const {
  if (ranks.empty()) return std::unique_ptr<Acceptor>();
  return Acceptor::start(
      {.listener = std::move(listener), .key = options_.key, .purpose = purpose, .self = self_},
      std::move(ranks));
}

Result<FileDescriptor> Joiner::prove_key(
    int rank, Purpose purpose,
    const std::function<Result<FileDescriptor>()>& connect_to_rank) const {
  Result<FileDescriptor> socket = connect_and_greet(
      connect_to_rank,
      [&](int fd) {
        return handshake_as_client(fd, options_.key, purpose, self_, limit_).status();
      },
      limit_);
  if (socket.ok()) return socket;
  return socket.status().with_context(fmt::format("joining rank {}", rank));
}

bool Joiner::same_network(int rank) const {
  const RankCard& own = cards_[static_cast<std::size_t>(options_.rank)];
  const RankCard& other = cards_[static_cast<std::size_t>(rank)];
  return own.machine == other.machine && own.network == other.network && own.unix_name != "none" &&
         other.unix_name != "none";
}

// The process of a rank, if its number means the same to this one.
Result<transport::ProcessHandle> Joiner::find_process(int rank) const {
  const RankCard& own = cards_[static_cast<std::size_t>(options_.rank)];
  const RankCard& other = cards_[static_cast<std::size_t>(rank)];
  const bool is_visible = own.machine == other.machine && !own.pid_namespace.empty() &&
                          own.pid_namespace == other.pid_namespace;
  return transport::ProcessHandle::of_number(is_visible ? other.pid : 0);
}

std::string Joiner::why_not_shared(int rank) const {
  const RankCard& own = cards_[static_cast<std::size_t>(options_.rank)];
  const RankCard& other = cards_[static_cast<std::size_t>(rank)];
  if (own.machine != other.machine) return "another machine";
  if (own.unix_name == "none" || other.unix_name == "none") return "switched off";
  if (own.network != other.network) return "different network namespaces";
  return "the Unix socket could not be connected";
}

// Connects to the lower ranks, tells the higher ones which connections have succeeded, and learns
// the same from them: both ends of a pair then know where to go on.
Status Joiner::connect_unix() {
  std::string succeeded;
  for (int r = 0; r < options_.rank; ++r) {
    if (!same_network(r)) continue;
    const std::string& name = cards_[static_cast<std::size_t>(r)].unix_name;
    const auto reach = [&] { return connect_unix_abstract(name, limit_.within(kUnixTime)); };
    Result<FileDescriptor> first = reach();
    if (!first.ok()) STRETTO_RETURN_IF_ERROR(limit_.look());
    // A rank of another user refuses this one's connection without a word.
    const bool welcome = first.ok() && (::geteuid() == 0 || peer_is_trusted_user(first->get()));
    if (!welcome) {
      log(LogLevel::warning, "no Unix socket to rank {}: {}", r,
          first.ok() ? "it runs as another user" : first.status().message());
      continue;
    }
    Result<FileDescriptor> socket = prove_key(r, Purpose::mesh_unix, [&] {
      return first->valid() ? Result<FileDescriptor>(std::move(*first)) : reach();
    });
    // A refusal is final: another way would only be refused as well.
    if (!socket.ok()) return socket.status();
    unix_socket(r) = std::move(*socket);
    succeeded += fmt::format("{} ", r);
  }
  STRETTO_RETURN_IF_ERROR(set(fmt::format("unix/{}", options_.rank), succeeded + "."));
  const std::string own = fmt::format("{} ", options_.rank);
  for (int r = options_.rank + 1; r < options_.size; ++r) {
    Result<std::string> theirs = get("unix", r);
    if (!theirs.ok()) return theirs.status();
    const bool connected = theirs->starts_with(own) || theirs->find(" " + own) != std::string::npos;
    if (!connected || unix_acceptor_ == nullptr) continue;
    Result<FileDescriptor> socket = unix_acceptor_->take(r, limit_);
    if (!socket.ok()) return socket.status();
    unix_socket(r) = std::move(*socket);
  }
  unix_acceptor_.reset();
  return {};
}

// Where peers can reach this rank: as it sees the host where all have met, if they have met on one.
Result<std::string> Joiner::own_address() const {
  if (!options_.rendezvous_host.empty()) {
    return local_address_towards(options_.rendezvous_host, options_.rendezvous_port, limit_);
  }
  const RankCard& own = cards_[static_cast<std::size_t>(options_.rank)];
  const bool one_host = std::all_of(cards_.begin(), cards_.end(), [&](const RankCard& card) {
    return card.machine == own.machine && card.network == own.network;
  });
  if (one_host) return std::string("127.0.0.1");
  // An address that nobody has (RFC 5737) is reached through the network that leads everywhere.
  Result<std::string> host = local_address_towards("192.0.2.1", 9, limit_);
  if (host.ok()) return host;
  return host.status().with_context(
      "the ranks are on several hosts, and a file does not say by which network they reach each "
      "other; let them meet at tcp://HOST:PORT instead");
}

Status Joiner::connect_tcp_rest() {
  std::set<int> higher;
  for (int r = options_.rank + 1; r < options_.size; ++r) {
    if (!unix_socket(r).valid()) higher.insert(r);
  }
  if (!higher.empty()) {
    Result<std::string> host = own_address();
    if (!host.ok()) return host.status();
    Result<FileDescriptor> listener = listen_tcp(*host, 0, limit_);
    if (!listener.ok()) return listener.status();
    Result<int> port = local_port(listener->get());
    if (!port.ok()) return port.status();
    auto started = accept_from(higher, std::move(*listener), Purpose::mesh_tcp);
    if (!started.ok()) return started.status();
    tcp_acceptor_ = std::move(*started);
    STRETTO_RETURN_IF_ERROR(
        set(fmt::format("tcp/{}", options_.rank), format_host_port(*host, *port)));
  }
  for (int r = 0; r < options_.rank; ++r) {
    if (unix_socket(r).valid()) continue;
    Result<std::string> text = get("tcp", r);
    if (!text.ok()) return text.status();
    Result<HostPort> address = parse_host_port(*text);
    if (!address.ok()) return address.status();
    Result<FileDescriptor> socket = prove_key(
        r, Purpose::mesh_tcp, [&] { return connect_tcp(address->host, address->port, limit_); });
    if (!socket.ok()) return socket.status();
    tcp_socket(r) = std::move(*socket);
  }
  for (const int r : higher) {
    Result<FileDescriptor> socket = tcp_acceptor_->take(r, limit_);
    if (!socket.ok()) return socket.status();
    tcp_socket(r) = std::move(*socket);
  }
  tcp_acceptor_.reset();
  return {};
}

void Joiner::log_link(int rank) {
  const RankCard& card = cards_[static_cast<std::size_t>(rank)];
  if (unix_socket(rank).valid()) {
    log(LogLevel::info, "rank {} ({} pid {}): shm", rank, card.node, card.pid);
    return;
  }
  const bool one_machine = card.machine == cards_[static_cast<std::size_t>(options_.rank)].machine;
  // On one machine somebody may not have meant it.
  const bool surprising = one_machine && options_.shared_memory;
  log(surprising ? LogLevel::warning : LogLevel::info,
      "shared memory is off between ranks {} and {} ({} pid {}): {}; using tcp{}", options_.rank,
      rank, card.node, card.pid, why_not_shared(rank),
      surprising ? ", which is slower. Run both in one network namespace to share memory" : "");
}

Result<Mesh> Joiner::make_endpoint() {
  Mesh mesh;
  const RankCard& own = cards_[static_cast<std::size_t>(options_.rank)];
  ProcessorSet processors = own.processors;
  for (int r = 0; r < options_.size; ++r) {
    const auto& card = cards_[static_cast<std::size_t>(r)];
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
  Result<transport::Endpoint::Parts> parts =
      transport::shm::attach(options_.rank, std::move(unix_sockets_), limit_);
  if (!parts.ok()) return parts.status();
  for (int r = 0; r < options_.size; ++r) {
    if (!tcp_socket(r).valid()) continue;
    Result<std::unique_ptr<transport::Link>> link =
        transport::tcp::TcpLink::create(std::move(tcp_socket(r)), options_.network_timeout);
    if (!link.ok()) return link.status();
    parts->links[static_cast<std::size_t>(r)] = std::move(*link);
    Result<transport::ProcessHandle> process = find_process(r);
    if (!process.ok()) return process.status();
    parts->processes[static_cast<std::size_t>(r)] = std::move(*process);
  }
  parts->names = mesh.names;
  Result<std::unique_ptr<transport::Endpoint>> endpoint =
      transport::Endpoint::create(std::move(*parts));
  if (!endpoint.ok()) return endpoint.status();
  mesh.endpoint = std::move(*endpoint);
  return mesh;
}

}  // namespace

Result<Mesh> connect_mesh(JoinNotes& notes, const MeshOptions& options) {
  return Joiner(notes, options).join();
}

}  // namespace stretto::bootstrap

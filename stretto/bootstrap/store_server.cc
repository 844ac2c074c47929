// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/store_server.h"

#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/log.h"
#include "stretto/base/poll.h"
#include "stretto/base/thread.h"
#include "stretto/base/would_block.h"
#include "stretto/bootstrap/authenticating_listener.h"
#include "stretto/bootstrap/join_failure.h"
#include "stretto/bootstrap/peer_user.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/store_contents.h"
#include "stretto/bootstrap/store_frame.h"

namespace stretto::bootstrap {
namespace {

// Requests are small. More bytes than this wait on the client's side.
constexpr int kReceiveBufferBytes = 32 * 1024;
// Bytes charged for a connection besides its texts.
constexpr std::size_t kConnectionBytes = 1024;
// Looking up the user of a connection takes a while if there are many connections.
constexpr Duration kBetweenLookups = std::chrono::milliseconds(100);

struct ServedWill {
  std::string key;
  std::string value;
  std::string revoked_by;
};

// Assigning an empty text would keep the memory.
void free_memory(std::string& text) { std::string().swap(text); }

// A connection of a peer that has proven the key.
struct Connection {
  FileDescriptor fd;
  std::string name;
  std::string input;
  std::string output;
  // The key that a get or wait of this client waits for; empty if there is none.
  std::string awaited;
  StoreOperation waiting = StoreOperation::get;
  ServedWill will;
  // Bytes charged to the budget for it.
  std::size_t charged_bytes = 0;

  // A client may send its next request while it awaits a reply. That request stays in the socket.
  bool reads() const { return output.empty() && awaited.empty(); }
  std::size_t held_bytes() const {
    return kConnectionBytes + input.capacity() + output.capacity() + awaited.capacity() +
           will.key.capacity() + will.value.capacity() + will.revoked_by.capacity();
  }
};

class Server : public StoreServer {
 public:
  Server(const StoreServerOptions& options, int port)
      : options_(options),
        port_(port),
        budget_(std::make_shared<ByteBudget>(options.max_total_bytes)),
        contents_(budget_) {}

  ~Server() override {
    thread_.stop();
    // Closed before the clients see their connections end, so that none can connect to this server
    // again.
    listener_.reset();
  }

  Status launch(FileDescriptor listener);
  int port() const override { return port_; }
  std::size_t client_count() const override { return client_count_; }
  std::size_t will_count() const override { return will_count_; }

 private:
  void serve(int stop);
  void accept_clients();
  void add(ProvenConnection proven);
  void judge(const AuthenticatingListener::Refusal& refusal);
  bool belongs_to_job(const AuthenticatingListener::Refusal& refusal);
  void set(std::string_view key, std::string_view value);
  void handle(int fd, std::uint32_t events);
  Status advance(Connection& connection, std::uint32_t events);
  Status read_some(Connection& connection);
  Status answer_requests(Connection& connection);
  void answer(Connection& connection, const StoreRequest& request);
  void wake_waiters(std::string_view key);
  Status flush(Connection& connection);
  Status charge(Connection& connection);
  Status update_interest(const Connection& connection);
  void drop(int fd, const Status& why);
  void execute(const ServedWill& will);
  Status watch_for(int fd, std::uint32_t events, int operation = EPOLL_CTL_ADD) {
    return watch(epoll_.get(), fd, events, static_cast<std::uint64_t>(fd), operation);
  }

  const StoreServerOptions options_;
  const int port_;
  std::unique_ptr<AuthenticatingListener> listener_;
  FileDescriptor epoll_;
  std::atomic<std::size_t> client_count_ = 0;
  std::atomic<std::size_t> will_count_ = 0;

  // The members below are used by the thread only.
  std::unordered_map<int, std::unique_ptr<Connection>> connections_;
  // Counts the bytes that clients make this server hold.
  std::shared_ptr<ByteBudget> budget_;
  StoreContents contents_;
  std::multimap<std::string, int, std::less<>> waiters_;
  // Ranks that have proven the key, including those that have left.
  std::set<int> ranks_;
  Deadline next_lookup_{TimePoint::min()};
  StoppableThread thread_;
};

Status Server::launch(FileDescriptor listener) {
  (void)::setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &kReceiveBufferBytes,
                     sizeof(kReceiveBufferBytes));
  STRETTO_ASSIGN_OR_RETURN(
      listener_, AuthenticatingListener::create({.listener = std::move(listener),
                                                 .key = options_.key,
                                                 .purpose = Purpose::store,
                                                 .self = options_.self,
                                                 .handshake_timeout = options_.handshake_timeout,
                                                 .max_unproven = options_.max_handshakes}));
  epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return system_status("starting the store");
  STRETTO_RETURN_IF_ERROR(watch_for(listener_->descriptor(), EPOLLIN));
  return thread_.start("stretto-store", [this](int stop) { serve(stop); });
}

void Server::serve(int stop) {
  epoll_event events[64];
  while (true) {
    pollfd entries[] = {{stop, POLLIN, 0}, {epoll_.get(), POLLIN, 0}};
    if (::poll(entries, 2, poll_milliseconds(listener_->time_until_due())) < 0) continue;
    if (entries[0].revents != 0) return;
    const int count = ::epoll_wait(epoll_.get(), events, std::size(events), 0);
    if (count < 0 && errno != EINTR) {
      log(LogLevel::error, "the store has ended: {}", system_status("epoll_wait").message());
      return;
    }
    for (int i = 0; i < count; ++i) {
      const int fd = static_cast<int>(events[i].data.u64);
      if (fd != listener_->descriptor()) handle(fd, events[i].events);
    }
    // Last: a new connection may get the descriptor number of one that this round has closed, and
    // must not get that one's events.
    accept_clients();
  }
}

void Server::accept_clients() {
  AuthenticatingListener::Accepted accepted = listener_->serve();
  for (auto& proven : accepted.proven) add(std::move(proven));
  for (const auto& refusal : accepted.refused) judge(refusal);
}

void Server::add(ProvenConnection proven) {
  const int number = proven.fd.get();
  log(LogLevel::debug, "rank {} connected to the store from {}", proven.peer.rank, proven.name);
  auto connection = std::make_unique<Connection>();
  connection->fd = std::move(proven.fd);
  connection->name = std::move(proven.name);
  if (!charge(*connection).ok()) {
    log(LogLevel::warning, "refused a connection from {}: the store has {} clients and {} bytes",
        connection->name, connections_.size(), budget_->used_bytes());
    return;
  }
  ranks_.insert(proven.peer.rank);
  // Bytes that have come already cause an event as well.
  const Connection& added = *connections_.emplace(number, std::move(connection)).first->second;
  client_count_ = connections_.size();
  const Status watched = watch_for(added.fd.get(), EPOLLIN | EPOLLRDHUP);
  if (!watched.ok()) drop(number, watched);
}

// A rank of this job with another key or version will never come, so the join has failed, and all
// waiting ranks are told. A refused peer that may be of another job is only noted as a hint. A peer
// that claims no rank, such as `stretto doctor`, is not one that is missing.
void Server::judge(const AuthenticatingListener::Refusal& refusal) {
  if (refusal.claimed.rank < 0) return;
  const bool ours = belongs_to_job(refusal);
  const std::string sentence = fmt::format("{} ({})", refusal.why.message(), refusal.name);
  if (!ours) return set(kRefusedPeerKey, sentence);
  if (contents_.find(kJoinFailureKey) != nullptr) return;
  set(kJoinFailureKey,
      encode_join_failure({StatusCode::refused, sentence, Rank(refusal.claimed.rank)}));
}

// Whether a refused peer may end the join: it must claim a rank that has not come yet, since it is
// of another job otherwise. And it must have shown the key, or belong to a user who could kill the
// ranks anyway.
bool Server::belongs_to_job(const AuthenticatingListener::Refusal& refusal) {
  if (ranks_.contains(refusal.claimed.rank)) return false;
  if (refusal.holds_key) return true;
  if (!next_lookup_.passed()) return false;
  next_lookup_ = Deadline::after(kBetweenLookups);
  return peer_is_trusted_user(refusal.fd.get());
}

void Server::set(std::string_view key, std::string_view value) {
  const StoreRequest request{.operation = StoreOperation::set, .key = key, .value = value};
  if (contents_.answer(request).ok()) wake_waiters(key);
}

void Server::handle(int fd, std::uint32_t events) {
  const auto found = connections_.find(fd);
  // An earlier event of this round may have closed the connection.
  if (found == connections_.end()) return;
  Status status = advance(*found->second, events);
  if (status.ok()) status = charge(*found->second);
  if (!status.ok()) drop(fd, status);
}

Status Server::advance(Connection& connection, std::uint32_t events) {
  if ((events & EPOLLIN) != 0 && connection.reads()) {
    STRETTO_RETURN_IF_ERROR(read_some(connection));
  } else if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    return status_of(StatusCode::peer_lost, "the connection ended");
  }
  STRETTO_RETURN_IF_ERROR(flush(connection));
  // Answers requests that came while a reply was being sent.
  STRETTO_RETURN_IF_ERROR(answer_requests(connection));
  return update_interest(connection);
}

Status Server::read_some(Connection& connection) {
  char bytes[4096];
  const ssize_t count = ::recv(connection.fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (count > 0) {
    connection.input.append(bytes, static_cast<std::size_t>(count));
    return {};
  }
  if (count < 0 && would_block(errno)) return {};
  return status_of(StatusCode::peer_lost, "the connection ended");
}

Status Server::answer_requests(Connection& connection) {
  while (connection.reads()) {
    STRETTO_ASSIGN_OR_RETURN(const auto received, decode_store_request(connection.input));
    if (!received) return {};
    answer(connection, received->request);
    connection.input.erase(0, received->bytes);
    // Frees the buffer, so that an idle client holds little memory.
    if (connection.input.empty()) free_memory(connection.input);
    STRETTO_RETURN_IF_ERROR(flush(connection));
  }
  return {};
}

void Server::answer(Connection& connection, const StoreRequest& request) {
  if (request.operation == StoreOperation::will) {
    if (!connection.will.value.empty()) --will_count_;
    if (!request.value.empty()) ++will_count_;
    connection.will = {std::string(request.key), std::string(request.value),
                       std::string(request.expected)};
    connection.output += encode_store_reply(StoreReply{});
    return;
  }
  const std::uint64_t before = contents_.revision();
  const Result<std::optional<StoreReply>> reply = contents_.answer(request);
  if (!reply.ok()) {
    connection.output += encode_store_reply(reply.status());
  } else if (reply.value()) {
    connection.output += encode_store_reply(*reply.value());
  } else {
    connection.awaited = request.key;
    connection.waiting = request.operation;
    waiters_.emplace(request.key, connection.fd.get());
  }
  if (contents_.revision() != before) wake_waiters(request.key);
}

void Server::wake_waiters(std::string_view key) {
  if (contents_.find(key) == nullptr) return;
  const auto [first, last] = waiters_.equal_range(key);
  std::vector<int> waiting;
  for (auto waiter = first; waiter != last; ++waiter) waiting.push_back(waiter->second);
  waiters_.erase(first, last);
  for (int fd : waiting) {
    Connection& connection = *connections_.at(fd);
    connection.awaited.clear();
    answer(connection, {.operation = connection.waiting, .key = key});
    // The reply is sent at the waiting client's own event, so that a broken client does not affect
    // the one that set the key.
    if (!charge(connection).ok()) ::shutdown(fd, SHUT_RDWR);
    (void)update_interest(connection).ok();
  }
}

Status Server::flush(Connection& connection) {
  while (!connection.output.empty()) {
    const ssize_t count = ::send(connection.fd.get(), connection.output.data(),
                                 connection.output.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && would_block(errno)) return {};
    if (count < 0) return status_of(StatusCode::peer_lost, "the connection ended");
    connection.output.erase(0, static_cast<std::size_t>(count));
  }
  free_memory(connection.output);
  return {};
}

// Charges the budget for what the connection holds now.
Status Server::charge(Connection& connection) {
  const std::size_t held = connection.held_bytes();
  if (!budget_->change(connection.charged_bytes, held)) {
    return status_of(StatusCode::refused, "the store is full: {} of at most {} bytes",
                     budget_->used_bytes(), budget_->limit_bytes());
  }
  connection.charged_bytes = held;
  return {};
}

Status Server::update_interest(const Connection& connection) {
  std::uint32_t events = EPOLLRDHUP;
  if (!connection.output.empty()) events |= EPOLLOUT;
  if (connection.reads()) events |= EPOLLIN;
  return watch_for(connection.fd.get(), events, EPOLL_CTL_MOD);
}

void Server::drop(int fd, const Status& why) {
  const auto found = connections_.find(fd);
  if (why.code() != StatusCode::peer_lost) {
    log(LogLevel::warning, "closed the store's connection from {}: {}", found->second->name,
        why.message());
  }
  const auto [first, last] = waiters_.equal_range(found->second->awaited);
  for (auto waiter = first; waiter != last; ++waiter) {
    if (waiter->second == fd) {
      waiters_.erase(waiter);
      break;
    }
  }
  const ServedWill will = std::move(found->second->will);
  budget_->change(found->second->charged_bytes, 0);
  // Closing the descriptor also removes it from the epoll set.
  connections_.erase(found);
  client_count_ = connections_.size();
  if (will.value.empty()) return;
  execute(will);
  --will_count_;
}

void Server::execute(const ServedWill& will) {
  if (contents_.find(will.revoked_by) == nullptr && contents_.find(will.key) == nullptr) {
    set(will.key, will.value);
  }
}

}  // namespace

Result<std::unique_ptr<StoreServer>> StoreServer::start(const StoreServerOptions& options) {
  Result<FileDescriptor> listener = listen_tcp(options.host, options.port);
  if (!listener.ok()) return listener.status().with_context("the store cannot listen");
  STRETTO_ASSIGN_OR_RETURN(const int port, local_port(listener->get()));
  auto server = std::make_unique<Server>(options, port);
  STRETTO_RETURN_IF_ERROR(server->launch(std::move(*listener)));
  return std::unique_ptr<StoreServer>(std::move(server));
}

}  // namespace stretto::bootstrap

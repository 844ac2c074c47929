// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/store_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/log.h"
#include "stretto/bootstrap/handshake_machine.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/store_contents.h"
#include "stretto/bootstrap/store_frame.h"

namespace stretto::bootstrap {
namespace {

// A scanner that comes again and again must not fill the log.
constexpr int kMaxLoggedRefusals = 20;
// How long to leave the listener alone when the process has no file descriptor left.
constexpr Duration kPauseWithoutDescriptors = std::chrono::milliseconds(100);

struct Connection {
  FileDescriptor fd;
  std::string name;
  // Present until the peer has proven the key.
  std::optional<HandshakeMachine> handshake;
  Deadline handshake_deadline;
  std::string input;
  std::string output;
  // The key that a get or wait is waiting for; empty if none does.
  std::string awaited;
  StoreOperation waiting = StoreOperation::get;

  // A client may send its next request while it awaits a reply; that one stays in the socket.
  bool reads() const { return output.empty() && awaited.empty(); }
};

class Server : public StoreServer {
 public:
  Server(const StoreServerOptions& options, FileDescriptor listener, int port)
      : options_(options),
        listener_(std::move(listener)),
        port_(port),
        contents_(options.max_total_bytes) {}

  ~Server() override {
    const std::uint64_t one = 1;
    (void)!::write(stop_.get(), &one, sizeof(one));
    if (thread_.joinable()) thread_.join();
    // Before the clients see their connections end: then nobody can come to this server again.
    listener_.reset();
  }

  Status launch() {
    epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
    stop_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!epoll_.valid() || !stop_.valid()) return system_status("starting the store");
    STRETTO_RETURN_IF_ERROR(watch(EPOLL_CTL_ADD, listener_.get(), EPOLLIN));
    STRETTO_RETURN_IF_ERROR(watch(EPOLL_CTL_ADD, stop_.get(), EPOLLIN));
    thread_ = std::thread([this] {
      try {
        serve();
      } catch (const std::exception& failure) {
        log(LogLevel::error, "the store has ended: {}", failure.what());
      }
    });
    return {};
  }

  int port() const override { return port_; }
  std::size_t client_count() const override { return client_count_; }

 private:
  void serve();
  int wait_milliseconds() const;
  void accept_all();
  void add(FileDescriptor fd);
  void pause_listening();
  void resume_listening();
  void close_late_handshakes();
  void handle(int fd, std::uint32_t events);
  Status advance(Connection& connection, std::uint32_t events);
  Status read_some(Connection& connection);
  Status take(Connection& connection, ConstByteSpan bytes);
  Status answer_requests(Connection& connection);
  void answer(Connection& connection, const StoreRequest& request);
  void wake_waiters(std::string_view key);
  Status flush(Connection& connection);
  Status update_interest(const Connection& connection);
  void refuse(const Connection& connection, const Status& why);
  void drop(int fd, const Status& why);
  Status watch(int operation, int fd, std::uint32_t events);

  const StoreServerOptions options_;
  FileDescriptor listener_;
  const int port_;
  FileDescriptor epoll_;
  FileDescriptor stop_;
  std::thread thread_;
  std::atomic<std::size_t> client_count_ = 0;

  // All below belongs to the thread.
  std::unordered_map<int, std::unique_ptr<Connection>> connections_;
  // Unproven connections, oldest first.
  std::deque<int> handshakes_;
  StoreContents contents_;
  std::multimap<std::string, int, std::less<>> waiters_;
  int refusals_ = 0;
  std::optional<Deadline> listening_again_;
};

void Server::serve() {
  epoll_event events[64];
  while (true) {
    const int count = ::epoll_wait(epoll_.get(), events, std::size(events), wait_milliseconds());
    if (count < 0 && errno != EINTR) {
      log(LogLevel::error, "the store has ended: {}", system_status("epoll_wait").message());
      return;
    }
    bool knocked = false;
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == stop_.get()) return;
      if (fd == listener_.get()) {
        knocked = true;
      } else {
        handle(fd, events[i].events);
      }
    }
    // Last: a new connection may get the number of one that this round has closed, and must not get
    // its events.
    if (knocked) accept_all();
    close_late_handshakes();
    if (listening_again_ && listening_again_->passed()) resume_listening();
  }
}

int Server::wait_milliseconds() const {
  Duration wait = std::chrono::hours(1);
  if (!handshakes_.empty()) {
    wait = std::min(wait, connections_.at(handshakes_.front())->handshake_deadline.remaining());
  }
  if (listening_again_) wait = std::min(wait, listening_again_->remaining());
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count());
}

void Server::accept_all() {
  // A passed deadline: only connections that are there already.
  while (true) {
    Result<FileDescriptor> fd = accept(listener_.get(), Deadline(TimePoint::min()));
    if (fd.ok()) {
      add(std::move(*fd));
    } else {
      if (fd.status().code() == StatusCode::system) {
        log(LogLevel::warning, "the store cannot take a connection: {}", fd.status().message());
        pause_listening();
      }
      return;
    }
  }
}

void Server::add(FileDescriptor fd) {
  if (handshakes_.size() >= options_.max_handshakes) {
    drop(handshakes_.front(),
         status_of(StatusCode::refused, "too many connections have not proven the job key"));
  }
  auto connection = std::make_unique<Connection>();
  connection->name = peer_name(fd.get());
  connection->fd = std::move(fd);
  if (connections_.size() >= options_.max_clients) {
    refuse(*connection, status_of(StatusCode::refused, "the store has {} clients, its limit",
                                  connections_.size()));
    return;
  }
  Result<HandshakeMachine> handshake =
      HandshakeMachine::start(HandshakeRole::server, options_.key, Purpose::store, options_.self);
  const int number = connection->fd.get();
  if (!handshake.ok() || !watch(EPOLL_CTL_ADD, number, EPOLLIN | EPOLLRDHUP).ok()) return;
  connection->handshake = std::move(*handshake);
  connection->handshake_deadline = Deadline::after(options_.handshake_timeout);
  handshakes_.push_back(number);
  connections_.emplace(number, std::move(connection));
  client_count_ = connections_.size();
}

void Server::pause_listening() {
  if (watch(EPOLL_CTL_MOD, listener_.get(), 0).ok()) {
    listening_again_ = Deadline::after(kPauseWithoutDescriptors);
  }
}

void Server::resume_listening() {
  listening_again_.reset();
  if (!watch(EPOLL_CTL_MOD, listener_.get(), EPOLLIN).ok()) pause_listening();
}

void Server::close_late_handshakes() {
  while (!handshakes_.empty()) {
    const Connection& oldest = *connections_.at(handshakes_.front());
    if (!oldest.handshake_deadline.passed()) return;
    drop(handshakes_.front(), oldest.handshake->timed_out());
  }
}

void Server::handle(int fd, std::uint32_t events) {
  const auto found = connections_.find(fd);
  // An earlier event of the same round may have closed it.
  if (found == connections_.end()) return;
  const Status status = advance(*found->second, events);
  if (!status.ok()) drop(fd, status);
}

Status Server::advance(Connection& connection, std::uint32_t events) {
  if ((events & EPOLLIN) != 0 && connection.reads()) {
    STRETTO_RETURN_IF_ERROR(read_some(connection));
  } else if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    return connection.handshake ? connection.handshake->ended_early()
                                : status_of(StatusCode::peer_lost, "the connection ended");
  }
  STRETTO_RETURN_IF_ERROR(flush(connection));
  // Requests that came while a reply was on its way.
  STRETTO_RETURN_IF_ERROR(answer_requests(connection));
  return update_interest(connection);
}

Status Server::read_some(Connection& connection) {
  std::byte bytes[4096];
  const std::size_t room = connection.handshake
                               ? std::min(sizeof(bytes), connection.handshake->wanted_bytes())
                               : sizeof(bytes);
  const ssize_t count = ::recv(connection.fd.get(), bytes, room, MSG_DONTWAIT);
  if (count > 0) return take(connection, {bytes, static_cast<std::size_t>(count)});
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (connection.handshake) return connection.handshake->ended_early();
  return status_of(StatusCode::peer_lost, "the connection ended");
}

Status Server::take(Connection& connection, ConstByteSpan bytes) {
  if (!connection.handshake) {
    connection.input.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  }
  HandshakeMachine& handshake = *connection.handshake;
  const Status received = handshake.receive(bytes);
  const std::vector<std::byte> output = handshake.take_output();
  connection.output.append(reinterpret_cast<const char*>(output.data()), output.size());
  if (!received.ok()) {
    // The last words, if any, are one small packet: it fits the socket's buffer or it is lost.
    (void)flush(connection).ok();
    return received;
  }
  if (handshake.done()) {
    std::erase(handshakes_, connection.fd.get());
    log(LogLevel::debug, "rank {} connected to the store from {}", handshake.peer().rank,
        connection.name);
    connection.handshake.reset();
  }
  return {};
}

Status Server::answer_requests(Connection& connection) {
  while (connection.reads() && !connection.handshake) {
    const Result<std::optional<ReceivedStoreRequest>> received =
        decode_store_request(connection.input);
    if (!received.ok()) return received.status();
    if (!received.value()) return {};
    answer(connection, received.value()->request);
    connection.input.erase(0, received.value()->bytes);
    STRETTO_RETURN_IF_ERROR(flush(connection));
  }
  return {};
}

void Server::answer(Connection& connection, const StoreRequest& request) {
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
    // Sent by its own event, so that one broken client is not the business of another.
    (void)update_interest(connection).ok();
  }
}

Status Server::flush(Connection& connection) {
  while (!connection.output.empty()) {
    const ssize_t count = ::send(connection.fd.get(), connection.output.data(),
                                 connection.output.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == EAGAIN) return {};
    if (count < 0 && errno != EINTR) {
      return status_of(StatusCode::peer_lost, "the connection ended");
    }
    if (count > 0) connection.output.erase(0, static_cast<std::size_t>(count));
  }
  return {};
}

Status Server::update_interest(const Connection& connection) {
  std::uint32_t events = EPOLLRDHUP;
  if (!connection.output.empty()) events |= EPOLLOUT;
  if (connection.reads()) events |= EPOLLIN;
  return watch(EPOLL_CTL_MOD, connection.fd.get(), events);
}

void Server::refuse(const Connection& connection, const Status& why) {
  ++refusals_;
  if (refusals_ > kMaxLoggedRefusals) return;
  log(LogLevel::warning, "refused a connection from {}: {}{}", connection.name, why.message(),
      refusals_ == kMaxLoggedRefusals ? " (no further refusal is logged)" : "");
}

void Server::drop(int fd, const Status& why) {
  const auto found = connections_.find(fd);
  const Connection& connection = *found->second;
  if (connection.handshake) {
    std::erase(handshakes_, fd);
    refuse(connection, why);
  } else if (why.code() != StatusCode::peer_lost) {
    log(LogLevel::warning, "closed the store's connection from {}: {}", connection.name,
        why.message());
  }
  const auto [first, last] = waiters_.equal_range(connection.awaited);
  for (auto waiter = first; waiter != last; ++waiter) {
    if (waiter->second == fd) {
      waiters_.erase(waiter);
      break;
    }
  }
  // Closing it also takes it out of the epoll set.
  connections_.erase(found);
  client_count_ = connections_.size();
}

Status Server::watch(int operation, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) return system_status("epoll_ctl");
  return {};
}

}  // namespace

Result<std::unique_ptr<StoreServer>> StoreServer::start(const StoreServerOptions& options) {
  Result<FileDescriptor> listener = listen_tcp(options.host, options.port);
  if (!listener.ok()) return listener.status().with_context("the store cannot listen");
  const Result<int> port = local_port(listener->get());
  if (!port.ok()) return port.status();
  auto server = std::make_unique<Server>(options, std::move(*listener), port.value());
  STRETTO_RETURN_IF_ERROR(server->launch());
  return std::unique_ptr<StoreServer>(std::move(server));
}

}  // namespace stretto::bootstrap

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/authenticating_listener.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include <fmt/format.h>

#include "stretto/base/log.h"
#include "stretto/base/poll.h"
#include "stretto/base/would_block.h"
#include "stretto/bootstrap/peer_user.h"
#include "stretto/bootstrap/socket.h"

namespace stretto::bootstrap {
namespace {

// A port scanner that connects again and again must not fill the log.
constexpr int kMaxLoggedRefusals = 20;
// How long to leave the listener alone when the process has no file descriptor left.
constexpr Duration kPauseWithoutDescriptors = std::chrono::milliseconds(100);
// After this many, the handshakes under way get their turn.
constexpr int kAcceptedAtOnce = 64;

bool is_unix(int fd) {
  int domain = 0;
  socklen_t bytes = sizeof(domain);
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_UNIX;
}

std::size_t quarter_of_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
  return std::max<std::size_t>(1, limit.rlim_cur / 4);
}

// Does not wait: a handshake's bytes fit the buffer of a new socket, or the peer has gone.
void send_now(int fd, const std::vector<std::byte>& bytes) {
  if (!bytes.empty()) (void)::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

Result<std::unique_ptr<AuthenticatingListener>> AuthenticatingListener::create(Options options) {
  options.max_unproven = std::min(options.max_unproven, quarter_of_descriptors());
  std::unique_ptr<AuthenticatingListener> made(new AuthenticatingListener(std::move(options)));
  made->epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!made->epoll_.valid()) return system_status("epoll_create1");
  STRETTO_RETURN_IF_ERROR(made->watch_for(made->options_.listener.get(), EPOLLIN));
  return made;
}

Duration AuthenticatingListener::time_until_due() const {
  Duration left = std::chrono::hours(1);
  if (!handshakes_.empty()) {
    left = std::min(left, handshakes_.front().deadline.remaining());
  }
  if (listening_again_) left = std::min(left, listening_again_->remaining());
  return left;
}

AuthenticatingListener::Accepted AuthenticatingListener::serve() {
  Accepted accepted;
  epoll_event events[64];
  const int count = ::epoll_wait(epoll_.get(), events, std::size(events), 0);
  bool has_visitors = false;
  for (int i = 0; i < count; ++i) {
    const int fd = static_cast<int>(events[i].data.u64);
    if (fd == options_.listener.get()) has_visitors = true;
    const auto found = std::ranges::find_if(
        handshakes_, [fd](const Handshake& handshake) { return handshake.fd.get() == fd; });
    if (found != handshakes_.end() && advance(*found, accepted) == State::over) {
      handshakes_.erase(found);
    }
  }
  // Last: a new connection may get the descriptor number of one that this round has closed, and
  // must not get that one's events.
  if (has_visitors) accept_some(accepted);
  close_late(accepted);
  if (listening_again_ && listening_again_->passed() &&
      watch_for(options_.listener.get(), EPOLLIN, EPOLL_CTL_MOD).ok()) {
    listening_again_.reset();
  }
  return accepted;
}

void AuthenticatingListener::accept_some(Accepted& accepted) {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    // With a passed deadline, accept() takes only connections that are there already.
    Result<FileDescriptor> fd = accept(options_.listener.get(), Deadline(TimePoint::min()));
    if (fd.ok()) {
      shortage_ = Status();
      start(std::move(*fd), accepted);
    } else if (fd.status().code() != StatusCode::system) {
      return;
    } else if (!make_room()) {
      // Logged once per shortage, as this is tried again ten times a second.
      if (shortage_.ok()) {
        log(LogLevel::warning, "cannot take a connection: {}", fd.status().message());
      }
      shortage_ = fd.status();
      if (watch_for(options_.listener.get(), 0, EPOLL_CTL_MOD).ok()) {
        listening_again_ = Deadline::after(kPauseWithoutDescriptors);
      }
      return;
    }
  }
}

// Closes the oldest connection that has not shown the key; if all have, the oldest one. A rank
// whose connection is closed in this way tries again.
bool AuthenticatingListener::make_room() {
  if (handshakes_.empty()) return false;
  auto oldest = std::ranges::find_if(
      handshakes_, [](const Handshake& handshake) { return !handshake.machine.holds_key(); });
  if (oldest == handshakes_.end()) oldest = handshakes_.begin();
  log_refusal(oldest->name,
              status_of(StatusCode::refused, "too many connections have not proven the job key"));
  handshakes_.erase(oldest);
  return true;
}

void AuthenticatingListener::start(FileDescriptor fd, Accepted& accepted) {
  std::string name = peer_name(fd.get());
  if (is_unix(fd.get()) && !peer_is_trusted_user(fd.get())) {
    const std::optional<uid_t> user = peer_user(fd.get());
    return log_refusal(name, status_of(StatusCode::refused,
                                       "it belongs to another user ({}) than this process ({})",
                                       user ? fmt::to_string(*user) : "unknown", ::geteuid()));
  }
  if (handshakes_.size() >= options_.max_unproven) make_room();
  Result<HandshakeMachine> machine = HandshakeMachine::start(
      HandshakeRole::server, options_.key, options_.purpose, options_.self, &options_.others);
  if (!machine.ok() || !watch_for(fd.get(), EPOLLIN).ok()) return;
  handshakes_.push_back({std::move(fd), std::move(name), std::move(*machine),
                         Deadline::after(options_.handshake_timeout)});
  // A rank has usually sent its hello by now.
  if (advance(handshakes_.back(), accepted) == State::over) handshakes_.pop_back();
}

AuthenticatingListener::State AuthenticatingListener::advance(Handshake& handshake,
                                                              Accepted& accepted) {
  HandshakeMachine& machine = handshake.machine;
  const int fd = handshake.fd.get();
  while (true) {
    std::byte bytes[kHelloBytes];
    const ssize_t count = ::recv(fd, bytes, machine.wanted_bytes(), MSG_DONTWAIT);
    if (count < 0 && would_block(errno)) return State::pending;
    const Status received = count > 0 ? machine.receive({bytes, static_cast<std::size_t>(count)})
                                      : machine.ended_early();
    send_now(fd, machine.take_output());
    if (!received.ok()) {
      refuse(handshake, received, accepted);
      return State::over;
    }
    if (!machine.done()) continue;
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    accepted.proven.push_back({std::move(handshake.fd), std::move(handshake.name), machine.peer()});
    return State::over;
  }
}

void AuthenticatingListener::refuse(Handshake& handshake, const Status& why, Accepted& accepted) {
  log_refusal(handshake.name, why);
  if (!handshake.machine.introduced() || why.code() != StatusCode::refused) return;
  // Closing a socket with unread bytes resets the connection, and the peer might then lose our last
  // bytes.
  std::byte ignored[kHelloBytes];
  (void)!::recv(handshake.fd.get(), ignored, sizeof(ignored), MSG_DONTWAIT);
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, handshake.fd.get(), nullptr);
  accepted.refused.push_back({std::move(handshake.fd), handshake.name, handshake.machine.peer(),
                              handshake.machine.holds_key(), why});
}

void AuthenticatingListener::log_refusal(const std::string& name, const Status& why) {
  ++refusals_;
  if (refusals_ > kMaxLoggedRefusals) return;
  log(LogLevel::warning, "refused a connection from {}: {}{}", name, why.message(),
      refusals_ == kMaxLoggedRefusals ? " (no further refusal is logged)" : "");
}

void AuthenticatingListener::close_late(Accepted& accepted) {
  while (!handshakes_.empty() && handshakes_.front().deadline.passed()) {
    refuse(handshakes_.front(), handshakes_.front().machine.timed_out(), accepted);
    handshakes_.erase(handshakes_.begin());
  }
}

Status AuthenticatingListener::watch_for(int fd, std::uint32_t events, int operation) {
  return watch(epoll_.get(), fd, events, static_cast<std::uint64_t>(fd), operation);
}

}  // namespace stretto::bootstrap

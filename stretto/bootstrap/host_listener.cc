// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/host_listener.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "stretto/base/file_passing.h"
#include "stretto/base/little_endian.h"
#include "stretto/base/log.h"
#include "stretto/base/poll.h"
#include "stretto/base/printable.h"
#include "stretto/base/would_block.h"
#include "stretto/bootstrap/peer_user.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/transport/shortage.h"

namespace stretto::bootstrap {
namespace {

// Size of a frame: a rank, and a text followed by at least one zero. A connection may come along.
constexpr std::size_t kFrameBytes = 512;
constexpr std::size_t kTextAt = 4;
constexpr std::size_t kFrameTextBytesMax = kFrameBytes - kTextAt - 1;
// Pause when a socket is full or file descriptors are lacking.
constexpr Duration kPause = std::chrono::milliseconds(20);

// Returns false if the socket is full: try again later. Fails with peer_lost if the other end has
// gone.
Result<bool> send_frame(int socket, const HostFrame& frame) {
  std::array<std::byte, kFrameBytes> bytes{};
  store_little_endian(bytes.data(), frame.rank);
  std::memcpy(bytes.data() + kTextAt, frame.text.data(),
              std::min(frame.text.size(), kFrameTextBytesMax));
  const FileDescriptor* connection = frame.connection.valid() ? &frame.connection : nullptr;
  const Sending sending = send_with_file(socket, bytes, connection);
  if (sending != Sending::failed) return sending == Sending::done;
  return status_of(StatusCode::peer_lost, "it has closed its Unix socket");
}

// Nothing if no frame has come yet, or if there is no descriptor for its connection; then
// `shortage` says why. A frame always arrives whole, as it was sent.
Result<std::optional<HostFrame>> receive_frame(int socket, Status& shortage) {
  std::array<std::byte, kFrameBytes> bytes{};
  ReceivedFile taken = receive_with_file(socket, bytes);
  if (taken.count < 0 && would_block(errno)) return std::optional<HostFrame>();
  if (taken.no_room != 0) {
    shortage = system_status("taking a connection that was handed over", taken.no_room);
    return std::optional<HostFrame>();
  }
  HostFrame frame;
  frame.connection = std::move(taken.file);
  if (taken.count <= 0) return status_of(StatusCode::peer_lost, "it has closed its Unix socket");
  frame.rank = load_little_endian<std::int32_t>(bytes.data());
  if (taken.count != static_cast<ssize_t>(kFrameBytes) || bytes.back() != std::byte{0} ||
      frame.rank < -1 || frame.connection.valid() != (frame.rank >= 0)) {
    return status_of(StatusCode::protocol, "it sent what no listener of a host sends");
  }
  frame.text = printable(reinterpret_cast<const char*>(bytes.data() + kTextAt));
  return std::optional(std::move(frame));
}

class HandedConnections final : public ConnectionSource {
 public:
  explicit HandedConnections(FileDescriptor socket) : socket_(std::move(socket)) {}

  int descriptor() const override { return again_ ? -1 : socket_.get(); }
  Duration time_until_due() const override {
    return again_ ? again_->remaining() : Duration(std::chrono::hours(1));
  }
  std::vector<ProvenConnection> take() override;
  const Status& shortage() const override { return shortage_; }
  Status end() const override { return end_; }

 private:
  void wait_for_room(const Status& shortage);

  FileDescriptor socket_;
  Status shortage_;
  std::optional<Deadline> again_;
  Status end_;
};

void HandedConnections::wait_for_room(const Status& shortage) {
  if (shortage_.ok()) log(LogLevel::warning, "{}", shortage.message());
  shortage_ = shortage;
  again_ = Deadline::after(kPause);
}

std::vector<ProvenConnection> HandedConnections::take() {
  std::vector<ProvenConnection> taken;
  if (again_ && !again_->passed()) return taken;
  again_.reset();
  while (end_.ok()) {
    Status shortage;
    Result<std::optional<HostFrame>> frame = receive_frame(socket_.get(), shortage);
    if (!shortage.ok()) wait_for_room(shortage);
    if (frame.ok() && !frame->has_value()) break;
    if (!frame.ok() || !(*frame)->connection.valid()) {
      end_ =
          frame.ok() ? status_of(StatusCode::protocol, "no connection came along") : frame.status();
      end_ = end_.with_context("the rank that listens for this host");
      break;
    }
    shortage_ = Status();
    HostFrame& handed = **frame;
    taken.push_back({std::move(handed.connection), std::move(handed.text), {.rank = handed.rank}});
  }
  return taken;
}

}  // namespace

Result<std::unique_ptr<HostListener>> HostListener::start(Options options) {
  std::unique_ptr<HostListener> made(new HostListener(std::move(options)));
  STRETTO_ASSIGN_OR_RETURN(UnixListener listener, listen_to_own_user());
  made->name_ = std::move(listener.name);
  STRETTO_ASSIGN_OR_RETURN(made->registrations_,
                           AuthenticatingListener::create({.listener = std::move(listener.socket),
                                                           .key = made->options_.key,
                                                           .purpose = Purpose::host_listener,
                                                           .self = made->options_.self}));
  STRETTO_RETURN_IF_ERROR(
      made->thread_.start("stretto-listen", [made = made.get()](int stop) { made->run(stop); }));
  return made;
}

Status HostListener::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

void HostListener::run(int stop) {
  transport::ShortageTimer timer;
  std::vector<pollfd> entries;
  while (true) {
    entries.assign({{stop, POLLIN, 0}, {registrations_->descriptor(), POLLIN, 0}});
    for (const auto& [bind_address, port] : ports_) {
      entries.push_back({port.connections->descriptor(), POLLIN, 0});
    }
    const std::size_t first_member = entries.size();
    for (const auto& [rank, member] : members_) entries.push_back({member.socket.get(), POLLIN, 0});
    const int wait_ms = poll_milliseconds(time_until_due());
    if (::poll(entries.data(), entries.size(), wait_ms) < 0) continue;
    if (entries.front().revents != 0) return;
    auto entry = entries.begin() + static_cast<std::ptrdiff_t>(first_member);
    for (auto at = members_.begin(); at != members_.end(); ++entry) {
      const bool stays = entry->revents == 0 || serve(at->second);
      at = stays ? std::next(at) : members_.erase(at);
    }
    take_ranks();
    for (auto& [bind_address, port] : ports_) {
      for (ProvenConnection& proven : port.connections->take()) hand_over(std::move(proven));
    }
    for (auto at = members_.begin(); at != members_.end();) {
      at = flush(at->second) ? std::next(at) : members_.erase(at);
    }
    if (const Status lasting = timer.judge(shortage()); !lasting.ok()) {
      const MutexLock lock(mutex_);
      failure_ = lasting.with_context("other ranks cannot connect to this host");
      return;
    }
  }
}

Duration HostListener::time_until_due() const {
  Duration left = registrations_->time_until_due();
  for (const auto& [bind_address, port] : ports_) {
    left = std::min(left, port.connections->time_until_due());
  }
  for (const auto& [rank, member] : members_) {
    if (!member.output.empty()) left = std::min(left, kPause);
  }
  return left;
}

Status HostListener::shortage() const {
  for (const auto& [bind_address, port] : ports_) {
    if (!port.connections->shortage().ok()) return port.connections->shortage();
  }
  return registrations_->shortage();
}

void HostListener::take_ranks() {
  for (ProvenConnection& proven : registrations_->take()) {
    const std::int32_t rank = proven.peer.rank;
    if (options_.ranks.contains(rank)) {
      members_.insert_or_assign(rank, Member{std::move(proven.fd)});
    } else {
      log(LogLevel::warning, "a process that says that it is rank {} is none of this host", rank);
    }
  }
}

// Returns whether the rank is still there.
bool HostListener::serve(Member& member) {
  Status shortage;  // Stays ok, as registrations bring no connection.
  Result<std::optional<HostFrame>> frame = receive_frame(member.socket.get(), shortage);
  if (!frame.ok() || !shortage.ok()) return false;
  if (!frame->has_value()) return true;
  member.output.push_back({.text = address_at((*frame)->text)});
  return true;
}

// Empty if it cannot listen there.
std::string HostListener::address_at(const std::string& bind_address) {
  if (const auto found = ports_.find(bind_address); found != ports_.end())
    return found->second.address;
  const auto open = [&]() -> Result<Port> {
    STRETTO_ASSIGN_OR_RETURN(LinkProvider::Listener listener, options_.listen(bind_address));
    STRETTO_ASSIGN_OR_RETURN(auto connections,
                             AuthenticatingListener::create({.listener = std::move(listener.socket),
                                                             .key = options_.key,
                                                             .purpose = options_.purpose,
                                                             .self = options_.self,
                                                             .others = options_.ranks}));
    return Port{std::move(listener.address), std::move(connections)};
  };
  Result<Port> port = open();
  if (!port.ok()) {
    log(LogLevel::warning, "cannot listen at {} for the ranks of this host: {}", bind_address,
        port.status().message());
    return {};
  }
  return ports_.emplace(bind_address, std::move(*port)).first->second.address;
}

void HostListener::hand_over(ProvenConnection connection) {
  const auto member = members_.find(connection.peer.target);
  if (member != members_.end()) {
    member->second.output.push_back(
        {connection.peer.rank, std::move(connection.name), std::move(connection.fd)});
    return;
  }
  log(LogLevel::warning, "closed a connection of rank {} ({}) to rank {}, which is not there",
      connection.peer.rank, connection.name, connection.peer.target);
}

// Returns whether the rank is still there.
bool HostListener::flush(Member& member) {
  while (!member.output.empty()) {
    const Result<bool> sent = send_frame(member.socket.get(), member.output.front());
    if (!sent.ok()) return false;
    if (!sent.value()) return true;
    member.output.pop_front();
  }
  return true;
}

Result<Reception> register_at_host(const std::string& name, const std::string& bind_address,
                                   const JobKey& key, const Identity& self,
                                   const WaitLimit& limit) {
  if (bind_address.size() > kFrameTextBytesMax) {
    return status_of(StatusCode::invalid_argument, "\"{}\" is too long for an address",
                     bind_address);
  }
  const auto greet = [&](int fd) {
    return handshake_as_client(fd, key, Purpose::host_listener, self, limit).status();
  };
  STRETTO_ASSIGN_OR_RETURN(
      FileDescriptor socket,
      connect_and_greet([&] { return connect_to_own_user(name, limit); }, greet, limit));
  STRETTO_RETURN_IF_ERROR(send_frame(socket.get(), {.text = bind_address}).status());
  while (true) {
    STRETTO_RETURN_IF_ERROR(wait_for(socket.get(), POLLIN, limit));
    Status shortage;
    STRETTO_ASSIGN_OR_RETURN(std::optional<HostFrame> answer,
                             receive_frame(socket.get(), shortage));
    STRETTO_RETURN_IF_ERROR(shortage);
    // No rank knows the address yet, so a connection that comes before it is ignored.
    if (!answer || answer->connection.valid()) continue;
    if (answer->text.empty()) {
      return status_of(StatusCode::system, "it cannot listen at {}", bind_address);
    }
    return Reception{std::make_unique<HandedConnections>(std::move(socket)),
                     std::move(answer->text)};
  }
}

}  // namespace stretto::bootstrap

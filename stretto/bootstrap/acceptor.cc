// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/acceptor.h"

#include "stretto/base/log.h"

namespace stretto::bootstrap {
namespace {

constexpr std::chrono::seconds kHandshakeTime(10);
constexpr std::chrono::milliseconds kStopCheck(50);
// Beyond this many connections somebody is playing with the port.
constexpr std::size_t kGreetersPerRank = 16;

}  // namespace

Acceptor::Acceptor(Options options) : options_(std::move(options)), thread_([this] { run(); }) {}

Acceptor::~Acceptor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  thread_.join();
  for (std::thread& greeter : greeters_) greeter.join();
}

void Acceptor::run() {
  const std::size_t greeters_max = kGreetersPerRank * (options_.expected.size() + 1);
  while (greeters_.size() < greeters_max) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    Result<FileDescriptor> connection =
        accept(options_.listener.get(), Deadline::after(kStopCheck));
    if (!connection.ok()) continue;  // Nobody came, or whoever came has gone again.
    greeters_.emplace_back([this, connected = std::make_shared<FileDescriptor>(
                                      std::move(*connection))] { greet(std::move(*connected)); });
  }
  log(LogLevel::warning, "no longer accepting connections: {} have come for {} ranks",
      greeters_.size(), options_.expected.size());
}

void Acceptor::greet(FileDescriptor connection) {
  const std::string from = peer_name(connection.get());
  Result<Identity> identity = handshake_as_server(connection.get(), options_.key, options_.purpose,
                                                  options_.self, Deadline::after(kHandshakeTime));
  if (!identity.ok()) {
    log(LogLevel::warning, "refused a connection from {}: {}", from, identity.status().message());
    return;
  }
  const int rank = identity->rank;
  const std::lock_guard lock(mutex_);
  if (!options_.expected.contains(rank) || !seen_.insert(rank).second) {
    log(LogLevel::warning, "refused a connection from {}: it says that it is rank {}, which {}",
        from, rank,
        seen_.contains(rank) ? "is connected already" : "does not connect to this rank");
    return;
  }
  connected_[rank] = std::move(connection);
  changed_.notify_all();
}

Result<FileDescriptor> Acceptor::take(int rank, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto here = [&] { return connected_.contains(rank); };
  while (!here()) {
    if (deadline.passed()) {
      return status_of(StatusCode::timeout, "rank {} never connected", rank);
    }
    changed_.wait_for(lock, std::min<Duration>(deadline.remaining(), std::chrono::seconds(1)));
  }
  FileDescriptor connection = std::move(connected_[rank]);
  connected_.erase(rank);
  return connection;
}

}  // namespace stretto::bootstrap

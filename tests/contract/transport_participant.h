// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <vector>

#include "stretto/base/random.h"
#include "tests/contract/transport_worlds.h"
#include "tests/support/bytes.h"
#include "tests/support/on_threads.h"
#include "tests/support/recording_listener.h"
#include "tests/support/tracked_request.h"

namespace stretto::transport {

// Bytes that differ from those of every other (seed, size).
inline Bytes pattern(std::uint64_t seed, std::size_t size) {
  Bytes bytes(size);
  Random random(seed * 1000003 + size);
  for (std::size_t i = 0; i < size; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.next();
    std::memcpy(bytes.data() + i, &word, std::min(sizeof(word), size - i));
  }
  return bytes;
}

inline OperationDescriptor some_operation(std::uint64_t count = 4) {
  return {.collective = Collective::all_reduce,
          .op = ReduceOp::sum,
          .dtype = DType::f32,
          .count = count};
}

// One rank of a test: posts messages that own their bytes, and keeps what it is told.
class Participant final : public RecordingListener {
 public:
  struct Message {
    Bytes bytes;
    TrackedRequest request;
  };

  Participant(World& world, int rank) : world_(&world), rank_(rank) {
    endpoint().set_listener(this);
  }
  Participant(const Participant&) = delete;
  ~Participant() override {
    if (world_->endpoints[rank_] == nullptr) return;
    endpoint().set_listener(nullptr);
    for (const Message& message : messages_) {
      if (message.request.done()) continue;
      forget(message.request.key.group, Status(StatusCode::aborted, "test is over"));
    }
  }

  Endpoint& endpoint() { return (*world_)[rank_]; }

  Message& send(Rank peer, MessageKey key, Bytes bytes,
                const OperationDescriptor& operation = some_operation()) {
    Message& message = add(peer, key, std::move(bytes), operation);
    message.request.outgoing = message.bytes;
    endpoint().send(message.request);
    return message;
  }
  Message& recv(Rank peer, MessageKey key, std::size_t size,
                const OperationDescriptor& operation = some_operation()) {
    Message& message = add(peer, key, Bytes(size, std::byte{0xee}), operation);
    message.request.incoming = message.bytes;
    endpoint().recv(message.request);
    return message;
  }
  void forget(std::uint64_t group, const Status& reason) {
    endpoint().forget(group, world_->everybody(), reason);
  }
  bool all_done() const { return done_count() == messages_.size(); }
  std::size_t done_count() const {
    return static_cast<std::size_t>(std::count_if(
        messages_.begin(), messages_.end(), [](const Message& m) { return m.request.done(); }));
  }

 private:
  Message& add(Rank peer, MessageKey key, Bytes bytes, const OperationDescriptor& operation) {
    Message& message = messages_.emplace_back();
    message.bytes = std::move(bytes);
    message.request.peer = peer;
    message.request.key = key;
    message.request.operation = operation;
    return message;
  }

  World* world_;
  int rank_;
  std::deque<Message> messages_;  // Grows without moving its elements.
};

// Makes progress on all endpoints, in one thread, until `done` or ten seconds have passed.
[[nodiscard]] inline bool drive(const std::vector<Endpoint*>& endpoints,
                                const std::function<bool()>& done) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  while (!done()) {
    bool moved = false;
    for (Endpoint* endpoint : endpoints) moved = endpoint->progress() || moved;
    if (deadline.passed()) return false;
    if (!moved) ::sched_yield();
  }
  return true;
}

// The same on all ranks that are left.
[[nodiscard]] inline bool drive(const World& world, const std::function<bool()>& done) {
  std::vector<Endpoint*> endpoints;
  for (const auto& endpoint : world.endpoints) {
    if (endpoint != nullptr) endpoints.push_back(endpoint.get());
  }
  return drive(endpoints, done);
}

// Lets everything that is under way arrive, before a check that something does not happen.
template <class Endpoints = std::vector<Endpoint*>>
void settle(const Endpoints& endpoints) {
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(20));
  (void)drive(endpoints, [&] { return deadline.passed(); });
}

// Runs `body` for each rank in a thread of its own.
inline void on_each_rank(World& world, const std::function<void(Participant&)>& body) {
  on_threads(world.size(), [&](int r) {
    Participant participant(world, r);
    body(participant);
  });
}

class TransportTest : public ::testing::TestWithParam<WorldKind> {
 protected:
  World make(int ranks = 2, int socket_buffer_bytes = 0) const {
    return GetParam().make({.ranks = ranks, .socket_buffer_bytes = socket_buffer_bytes});
  }
};

}  // namespace stretto::transport

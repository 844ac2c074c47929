// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "stretto/base/mutex.h"
#include "stretto/base/rank_vector.h"
#include "stretto/transport/packets/engine.h"

namespace stretto::testing {

// Moves packets between ranks of this process; any threads may call it. As with MPI and UCX, a
// packet counts as sent when the peer has begun to take it. The destructor deletes the packets that
// PacketStreams releases in abandon().
class MemoryEngine final : public transport::packets::Engine {
 public:
  using Flag = std::shared_ptr<std::atomic<bool>>;
  struct Packet {
    int from;
    std::vector<std::byte> bytes;
    Flag is_taken;
  };
  // What all ranks share.
  struct Wire {
    explicit Wire(int ranks) : coming(ranks) {}
    Mutex mutex;
    RankVector<std::deque<Packet>> coming STRETTO_GUARDED_BY(mutex);
  };

  MemoryEngine(std::shared_ptr<Wire> wire, int rank) : wire_(std::move(wire)), rank_(rank) {}
  ~MemoryEngine() override {
    for (const auto& [number, operation] : begun_) delete[] operation.bytes;
  }

  const char* library() const override { return "memory"; }
  const char* failure() const override { return ""; }
  const char* failure(int) const override { return ""; }
  const char* address() const override { return ""; }
  void connect(const char* const*) override {}

  int send(int peer, const std::byte* bytes, std::size_t count) override {
    const Flag is_taken = std::make_shared<std::atomic<bool>>(false);
    const MutexLock lock(wire_->mutex);
    wire_->coming[peer].push_back({rank_, {bytes, bytes + count}, is_taken});
    return begin(bytes, is_taken);
  }
  bool progress() override { return false; }
  bool probe(int& peer, std::size_t& count) override {
    const MutexLock lock(wire_->mutex);
    const auto& coming = wire_->coming[rank_];
    if (coming.empty()) return false;
    peer = coming.front().from;
    count = coming.front().bytes.size();
    return true;
  }
  int receive(std::byte* into) override {
    const MutexLock lock(wire_->mutex);
    auto& coming = wire_->coming[rank_];
    std::ranges::copy(coming.front().bytes, into);
    const Flag is_taken = coming.front().is_taken;
    coming.pop_front();
    *is_taken = true;
    return begin(into, is_taken);
  }
  bool has_ended(int operation) override {
    return *begun_.at(operation).has_ended && begun_.erase(operation) > 0;
  }

 private:
  struct Operation {
    const std::byte* bytes;
    Flag has_ended;
  };
  int begin(const std::byte* bytes, const Flag& has_ended) {
    begun_[++last_] = {bytes, has_ended};
    return last_;
  }

  std::shared_ptr<Wire> wire_;
  int rank_;
  int last_ = 0;
  std::map<int, Operation> begun_;  // Until has_ended() has returned true.
};

}  // namespace stretto::testing

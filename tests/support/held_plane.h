// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <functional>
#include <stdexcept>
#include <vector>

#include "stretto/transport/data_plane.h"

namespace stretto::transport {

// A data plane that moves nothing: requests end when they are cancelled or the peer is lost. The
// test sets what it says about arrived and read messages.
class HeldPlane final : public DataPlane, public PeerPlane {
 public:
  PeerPlane& of(Rank) override { return *this; }
  void send(Request& request) override { open_.push_back(&request); }
  void recv(Request& request) override { open_.push_back(&request); }
  bool has_arrived(const MessageKey&) const override { return false; }
  void cancel(std::uint64_t group, const Status& reason) override {
    end_if([group](const Request& request) { return request.key.group == group; }, reason);
  }
  void close(std::uint64_t group) override { closed.push_back(group); }
  void lose(const Status& reason) override {
    end_if([](const Request&) { return true; }, reason);
  }
  bool progress(UnexpectedQueue&) override {
    if (throws) throw std::runtime_error("the library is broken");
    if (to_push > 0) --to_push;
    return moves;
  }
  bool must_push() const override { return to_push > 0; }
  bool has_output() const override { return output; }
  std::uint64_t arrivals() const override { return arrived; }
  bool has_read(std::uint64_t arrivals) const override { return read >= arrivals; }

  bool output = false;
  std::atomic<bool> throws = false;
  std::atomic<bool> moves = false;
  std::atomic<int> to_push = 0;  // For how many calls of progress().
  std::uint64_t arrived = 0;
  std::uint64_t read = 0;
  std::vector<std::uint64_t> closed;

 private:
  void end_if(const std::function<bool(const Request&)>& predicate, const Status& reason) {
    std::erase_if(open_, [&](const Request* request) {
      if (!predicate(*request)) return false;
      complete(*request, reason);
      return true;
    });
  }

  std::vector<Request*> open_;
};

}  // namespace stretto::transport

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "stretto/base/clock.h"
#include "stretto/base/status.h"
#include "stretto/base/view.h"

namespace stretto::transport {

// A reliable, ordered stream of bytes to and from one peer, without blocking. What a kind of
// transport (loopback, shm, tcp) consists of; the endpoint does the rest for all of them.
//
// Not thread safe. A link that has failed keeps failing.
class Link {
 public:
  virtual ~Link() = default;

  virtual std::string_view name() const = 0;

  // Takes as many bytes as fit now, from the first piece on. 0: full.
  virtual Result<std::size_t> write(std::span<const ConstByteSpan> pieces) = 0;
  // Bytes on their way, as in a record of TLS, that write() has not reported yet: the next pieces
  // must begin with them.
  virtual std::size_t held_bytes() const { return 0; }
  // Gives as many bytes as are here now. 0: none. Fails with peer_lost once the peer is gone and
  // what it sent has been read.
  virtual Result<std::size_t> read(ByteSpan into) = 0;

  // Whether read() may have something. Costs no system call.
  virtual bool readable() const = 0;

  // Whether data arrives behind the descriptor only, so that it must be polled all the time.
  virtual bool needs_poll() const { return false; }
  // A descriptor that becomes readable when there is something to do, or -1. Edge triggered: the
  // endpoint calls service() for each event, with what epoll says of it.
  virtual int descriptor() const { return -1; }
  virtual void service(std::uint32_t /*events*/) {}

  // Wakes the peer if it sleeps. A no-op where writing does that by itself.
  virtual void notify() {}
  // Whether notify() would have somebody to wake. Any thread.
  virtual bool peer_sleeps() const { return false; }
  // Whether the peer has waited on this core last: SleepFlag::note_core() there. Any thread.
  virtual bool peer_waits_on(std::uint32_t /*core*/) const { return false; }

  // How well a peer on another host is within reach.
  struct Contact {
    Duration silence{};       // For how long nothing has come back of what was sent.
    bool silent = false;      // For longer than an answer takes of whoever is within reach.
    bool wants_sign = false;  // Nothing is under way that would tell: a small frame, please.
    bool lost = false;        // The network may not be silent for so long.
    bool heard = false;       // Something comes from the peer: packets are lost one way.
    // What has waited for the network for a second at least: the peer has had room for it.
    std::uint64_t waiting_bytes = 0;
    // How fast bytes have arrived there, and here, in the last few seconds: per second.
    double sent_rate = 0;
    double received_rate = 0;
  };
  // To be called a few times a second.
  virtual Contact check_contact(TimePoint /*now*/) { return {}; }
  // Nothing more will be written or read. Returns whether the peer has taken what has been written,
  // or takes nothing any more. A destructor waits for that, unless this has been asked before:
  // whoever has several links asks all of them, for as long as it wants, so that peers that take
  // nothing are waited for together.
  virtual bool finish() { return true; }
  // Lets the peer know that nothing more will be sent or read, as far as it can be reached. The
  // link fails from now on.
  virtual void disconnect() {}
};

}  // namespace stretto::transport

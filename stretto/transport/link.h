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

// A reliable, ordered stream of bytes to and from one peer, without blocking. Each kind of
// transport (loopback, shm, tcp) implements a link; the endpoint does the rest for all of them.
//
// Not thread safe. A link that has failed keeps failing.
class Link {
 public:
  virtual ~Link() = default;

  virtual std::string_view name() const = 0;

  // Takes as many bytes as fit now, from the first piece on. 0: full.
  virtual Result<std::size_t> write(std::span<const ConstByteSpan> pieces) = 0;
  // How many bytes the link has accepted, as in a record of TLS, that write() has not yet reported.
  // The next pieces must begin with the same bytes.
  virtual std::size_t held_bytes() const { return 0; }
  // Gives as many bytes as are here now. 0: none. Fails with peer_lost once the peer is gone and
  // what it sent has been read.
  virtual Result<std::size_t> read(ByteSpan into) = 0;

  // Whether read() may have something. Costs no system call.
  virtual bool readable() const = 0;

  // Whether only the descriptor tells of new data, so that it must be polled all the time.
  virtual bool needs_poll() const { return false; }
  // A descriptor that becomes readable when there is something to do, or -1. Edge triggered: the
  // endpoint calls service() for each event, with what epoll says of it.
  virtual int descriptor() const { return -1; }
  virtual void service(std::uint32_t /*events*/) {}

  // Wakes the peer if it sleeps. A no-op where writing does that by itself.
  virtual void notify() {}
  // Whether notify() would wake the peer. Any thread.
  virtual bool peer_sleeps() const { return false; }
  // Whether the peer last waited on this core, as its SleepFlag::note_core() says. Any thread.
  virtual bool peer_waits_on(std::uint32_t /*core*/) const { return false; }

  // Whether a peer on another host is within reach, and how fast bytes move.
  struct Contact {
    Duration silence{};       // For how long nothing that was sent was acknowledged.
    bool silent = false;      // For longer than a peer within reach takes to answer.
    bool wants_sign = false;  // Nothing is under way that would be acknowledged: the caller should
                              // send a small frame.
    bool lost = false;        // The silence has lasted too long: give the peer up.
    bool heard = false;       // Packets still come from the peer: they are lost in one direction
                              // only.
    // Bytes that have waited for the network for at least a second, though the peer had room for
    // them.
    std::uint64_t waiting_bytes = 0;
    // Bytes per second that have arrived at the peer, and here, in the last few seconds.
    double sent_rate = 0;
    double received_rate = 0;
  };
  // To be called a few times a second.
  virtual Contact check_contact(TimePoint /*now*/) { return {}; }
  // Tells the link that nothing more will be written or read. Returns whether the peer has taken
  // everything that was written, or takes nothing any more. The destructor waits for that unless
  // finish() was called before. A caller with several links calls finish() on all of them again and
  // again, for as long as it wants, and so waits for all peers at the same time.
  virtual bool finish() { return true; }
  // Lets the peer know that nothing more will be sent or read, as far as it can be reached. The
  // link fails from now on.
  virtual void disconnect() {}
};

}  // namespace stretto::transport

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string_view>

#include "stretto/transport/link.h"
#include "stretto/transport/ring.h"

namespace stretto::transport {

// How ranks that share memory get each other's attention, and learn of each other's end.
class Doorbell {
 public:
  virtual ~Doorbell() = default;
  // Makes the peer's descriptor() readable. Never blocks; may be lost if the peer is gone.
  virtual void ring() = 0;
  // Readable when the peer has rung or is gone.
  virtual int descriptor() const = 0;
  // Handles what has come by the descriptor.
  virtual void service() = 0;
  // Whether the peer is gone. What it wrote before is in the ring.
  virtual bool closed() const = 0;
  // Lets the peer know that this rank has given it up, if it is another process.
  virtual void close() {}
};

// A link between two ranks that share memory: a ring each way and a doorbell.
class RingLink : public Link {
 public:
  struct Parts {
    std::string_view name;
    Inbox own;   // Of this rank.
    Inbox peer;  // Of the other.
    int own_rank = 0;
    int peer_rank = 0;
    std::unique_ptr<Doorbell> doorbell;
    std::array<std::shared_ptr<void>, 2> memory;  // Keep both inboxes mapped.
  };
  explicit RingLink(Parts parts);

  std::string_view name() const override { return name_; }
  Result<std::size_t> write(std::span<const ConstByteSpan> pieces) override;
  Result<std::size_t> read(ByteSpan into) override;
  bool readable() const override { return !incoming_.empty() || doorbell_->closed(); }
  int descriptor() const override { return doorbell_->descriptor(); }
  void service(std::uint32_t /*events*/) override { doorbell_->service(); }
  void notify() override;
  bool peer_sleeps() const override;
  bool peer_waits_on(std::uint32_t core) const override;
  void disconnect() override { doorbell_->close(); }

 private:
  void fence() const;
  void ring_if_asleep();

  std::string_view name_;
  Ring incoming_;
  Ring outgoing_;
  Inbox own_;
  Inbox peer_;
  mutable std::atomic<bool> expedited_{false};  // Whether both are known to have registered.
  std::unique_ptr<Doorbell> doorbell_;
  std::array<std::shared_ptr<void>, 2> memory_;
};

// The words of its inbox by which a rank tells the ranks that share memory with it on which core it
// waits and, before it sleeps, that it wants to be woken.
class SleepFlag {
 public:
  SleepFlag(Inbox inbox, std::shared_ptr<void> memory);
  // Ordered before all later reads of memory that peers write (sequentially consistent).
  void raise();
  void lower();
  // Notes on which core this rank waits. A hint. Any thread.
  void note_core(std::uint32_t core);

 private:
  Inbox inbox_;
  std::shared_ptr<void> memory_;
};

}  // namespace stretto::transport

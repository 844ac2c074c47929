// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <string>

#include "stretto/base/id.h"
#include "stretto/communicator/communicator.h"
#include "stretto/reducer/uneven_steps.h"

namespace torch::optim {
class Optimizer;
}

namespace stretto {

namespace ddp {
struct JoinedLoop;
class Replica;
}  // namespace ddp

// An object, other than a model, that communicates in a training loop (PyTorch's Joinable): a
// ShardedOptimizer, a ParameterAveraging, or one of the program's own, which calls announce()
// before its collectives. If DistributedDataParallel::join() runs the loop, name the object in
// UnevenInputsOptions::joinables; if calls of join() are nested, in exactly one of them.
//
// A rank that has not named the same objects as the others, or has destroyed one, cannot follow
// them. It aborts the communicator: its join() throws Mismatch, and the others get Mismatch or
// Aborted, with the reason.
//
// Threads: as the derived class. The object must live until join() has returned.
class Joinable {
 public:
  Joinable(const Joinable&) = delete;
  Joinable& operator=(const Joinable&) = delete;
  virtual ~Joinable();

 protected:
  explicit Joinable(Communicator& communicator) : communicator_(communicator) {}

  Communicator& communicator() const { return communicator_; }
  // The derived class calls it before it communicates. Inside join() only ranks that have data do
  // so; ranks without data then run follow(what). Only the derived class gives `what` a meaning.
  // Collective inside join(), and blocks; throws Mismatch on all ranks if ranks that have data
  // announce different things. Does nothing outside of join().
  void announce(std::uint64_t what = 0);
  // Which ranks have data, as of the last announcement; null outside of join().
  const reducer::UnevenSteps* loop() const;

 private:
  friend struct ddp::JoinedLoop;
  friend class ddp::Replica;

  // Called on all ranks when join() begins. Throws InvalidArgument, on all ranks alike, if this
  // object cannot take part. Not collective.
  virtual void begin() {}
  // Called inside join() on a rank without data: takes part in the operation that the other ranks
  // have announced as `what`.
  virtual void follow(std::uint64_t what) = 0;
  // Called on all ranks when no rank has data any more: copies the state of this object from rank
  // `last`, the lowest of the ranks that ran the last step. Afterwards join() copies the parameters
  // and buffers of models from that rank.
  virtual void finish(Rank last) = 0;
  // Whether ranks keep different parts of the state of `optimizer`, so that none has all of it.
  virtual bool shares_out(const torch::optim::Optimizer& /*optimizer*/) const { return false; }
  // For messages: what follows announce(what), such as "step() of the ShardedOptimizer".
  virtual std::string describe(std::uint64_t what) const;

  Communicator& communicator_;
  ddp::JoinedLoop* loop_ = nullptr;  // While inside join().
  std::uint64_t number_ = 0;         // Its index in JoinedLoop::joinables.
};

}  // namespace stretto

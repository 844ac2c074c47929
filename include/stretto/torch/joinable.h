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

// What communicates in a training loop besides models, and so has to be named in
// UnevenInputsOptions::joinables where DistributedDataParallel::join() runs the loop (PyTorch's
// Joinable): a ShardedOptimizer, a ParameterAveraging, or a class of the program's own, whose
// collectives begin with announce(). Where calls of join() are nested, any one of them names it,
// once.
//
// A rank that cannot follow the others, because it has not named the same, or has destroyed what it
// named, aborts the communicator: its join() throws Mismatch, and the others get Mismatch or
// Aborted, with the reason.
//
// Threads: as the derived class. Must live until join() has returned.
class Joinable {
 public:
  Joinable(const Joinable&) = delete;
  Joinable& operator=(const Joinable&) = delete;
  virtual ~Joinable();

 protected:
  explicit Joinable(Communicator& communicator) : communicator_(communicator) {}

  Communicator& communicator() const { return communicator_; }
  // To be called by the derived class before it communicates, since inside join() only ranks that
  // have data call it: tells the ranks that have none to run follow(what). `what` has a meaning for
  // the derived class only. Collective inside join(), and blocks; throws Mismatch, on all ranks, if
  // ranks that have data announce different things. Does nothing outside of join().
  void announce(std::uint64_t what = 0);
  // Who has data, as of the last announcement; null outside of join().
  const reducer::UnevenSteps* loop() const;

 private:
  friend struct ddp::JoinedLoop;
  friend class ddp::Replica;

  // On all ranks, when join() begins: throws InvalidArgument, on all of them alike, if this cannot
  // take part. Not collective.
  virtual void begin() {}
  // Inside join(), on a rank without data: its part in what the others do now that they have
  // announced `what`.
  virtual void follow(std::uint64_t what) = 0;
  // On all ranks, when none has data any more: makes what is remembered that of `last`, the lowest
  // of the ranks that had data last. After that, models get its parameters and buffers.
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

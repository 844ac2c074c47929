// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>

#include "stretto/base/id.h"
#include "stretto/communicator/communicator.h"
#include "stretto/reducer/uneven_steps.h"

namespace torch::optim {
class Optimizer;
}

namespace stretto {

namespace ddp {
class Replica;
}

// What communicates in a training loop besides models, and so has to be named in
// UnevenInputsOptions::joined where DistributedDataParallel::join() runs the loop (PyTorch's
// Joinable): a ShardedOptimizer, a ParameterAveraging, or a class of the program's own, whose
// collectives begin with announce().
//
// Threads: as the derived class. Must live until join() has returned.
class Joinable {
 public:
  virtual ~Joinable() = default;

 protected:
  explicit Joinable(Communicator& communicator) : communicator_(communicator) {}

  Communicator& communicator() const { return communicator_; }
  // Of a rank that has data, before it communicates: inside join() those that have none hear of it,
  // and run follow(what). Collective there, and blocks; throws Mismatch, on all ranks, if others
  // that have data are about to do something else. Outside of join() it does nothing.
  void announce(std::uint64_t what = 0);
  // Who has data, as of the last announcement; null outside of join().
  const reducer::UnevenSteps* loop() const { return loop_; }

 private:
  friend class ddp::Replica;

  // Inside join(), on a rank without data: its part in what the others do now that they have
  // announced `what`.
  virtual void follow(std::uint64_t what) = 0;
  // On all ranks, when none has data any more: makes what is remembered that of `last`, the lowest
  // of the ranks that had data last. After that, models get its parameters and buffers.
  virtual void finish(Rank last) = 0;
  // Whether ranks keep different parts of the state of `optimizer`, so that none has all of it.
  virtual bool shares_out(const torch::optim::Optimizer& optimizer) const {
    return (void)optimizer, false;
  }

  Communicator& communicator_;
  reducer::UnevenSteps* loop_ = nullptr;  // While inside join().
  std::uint64_t number_ = 0;              // In that.
};

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>

#include "stretto/communicator/communicator.h"
#include "stretto/job/join_options.h"

namespace stretto {

namespace job {
class Membership;
}

struct ElasticOptions {
  // As for join(), but without rank and size. The rendezvous is HOST:PORT, the store of a `stretto
  // run`, which the launcher tells its own processes. `join_timeout` bounds each call of
  // ElasticJob::join().
  JoinOptions join = {};
  // No generation begins with fewer processes: join() waits for more.
  int min_size = 1;
};

// A job whose processes come and go, while the others keep their memory and go on: after a death
// they meet again without the dead, and a process that `stretto run --restarts N` has started in
// its place, or that somebody starts on another host, gets in at the next opportunity. (A job of
// join() ends with its first death, unless it shrinks.)
//
// From one change to the next the processes are one generation, with a communicator of its own.
// Rank 0 is the process that has been in the job for longest, so it has what newcomers need:
//
//   stretto::ElasticJob job;
//   for (bool finished = false; !finished;) {
//     const auto comm = job.join();
//     try {
//       comm->broadcast(state).wait();  // From rank 0.
//       finished = train(*comm, state);  // False: job.has_newcomers(*comm).
//     } catch (const stretto::PeerLost&) {
//     } catch (const stretto::Aborted&) {  // Another rank has noticed it before this one.
//     }
//   }
//
// `state` must not be left half changed by a step that fails: a rank that has finished the step
// may meet with one that has not. Change it when the step's last operation has ended, and let the
// state of rank 0 count.
//
// Who calls join() waits for every process of the last generation that lives. So all have to come:
// those that an operation does not tell (it succeeded for them) when they use the old communicator
// next, as it fails as soon as another rank has destroyed its own. A process that hangs, but lives,
// makes the others time out; they name it. A process leaves the job when its ElasticJob is
// destroyed: then destroy the communicator first.
//
// The processes meet in the store of a `stretto run` (of its first host), and the job ends with it.
// A process that no launcher has started needs STRETTO_RENDEZVOUS and STRETTO_JOB_KEY (stretto run
// --rendezvous, --print-job-key); without these, and without a launcher, it is a job of its own.
// Other launchers end or restart a job as a whole, and are refused.
//
// Threads: one at a time.
class ElasticJob {
 public:
  // Enters. Blocks until the store is there, for join_timeout at most. Throws InvalidArgument,
  // Refused (wrong key, other version), Timeout, SystemError.
  explicit ElasticJob(const ElasticOptions& options = {});
  ~ElasticJob();
  ElasticJob(const ElasticJob&) = delete;
  ElasticJob& operator=(const ElasticJob&) = delete;

  // The communicator of the next generation; the first one waits for all processes that the
  // launcher starts. Destroy the last one's before, or else the others may not know that it is
  // over. Blocks. If a process dies meanwhile, it begins anew. Throws Timeout, naming who is
  // missing; PeerLost if the store is gone; Aborted if the others have taken this process for dead,
  // because the network to the store was down; and what stretto::join() throws for settings that
  // differ. After a failure it may be called again.
  std::unique_ptr<Communicator> join();

  // Whether a process waits to get in; then all have to leave the communicator and call join().
  // Collective: rank 0 asks the store, which takes some hundred microseconds, and tells the others.
  bool has_newcomers(Communicator& communicator);

  // Of the communicator that join() has returned last, counted from 1; 0: none yet.
  int generation() const { return generation_; }

 private:
  Result<std::unique_ptr<Communicator>> try_to_join();

  const ElasticOptions options_;
  std::unique_ptr<job::Membership> membership_;  // Null: the process is alone.
  int generation_ = 0;
  bool has_left_ = false;
};

}  // namespace stretto

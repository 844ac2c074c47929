// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <optional>

#include "stretto/base/clock.h"
#include "stretto/base/error.h"
#include "stretto/communicator/communicator.h"
#include "stretto/job/join_options.h"

namespace stretto {

namespace bootstrap {
class Store;
}
namespace job {
class Membership;
struct ElasticPlace;
struct Generation;
}  // namespace job

struct ElasticOptions {
  // As for join(), but without rank and size. The rendezvous is HOST:PORT, the store of a `stretto
  // run`; processes of that launcher need not name it. `join_timeout` bounds how long
  // ElasticJob::join() waits for others, and after that how long it takes to connect. Both begin
  // anew when a process dies that was about to connect.
  JoinOptions join = {};
  // No generation begins with fewer processes: join() waits for more. The same in all processes. A
  // process without launcher and rendezvous is a job of its own and cannot have more than 1.
  int min_size = 1;
};

// A job whose processes may come, leave and die, while the others keep their memory and go on.
// After a death the others meet again without the dead process. A process that `stretto run
// --restarts N` has started in its place, or that somebody starts on another host, is admitted at
// the next opportunity. (A job of stretto::join() ends with its first death, unless it shrinks.)
//
// From one change to the next the processes are one generation, with its own communicator. Rank 0
// is a process that has met the others before, if one is left, so it has the state that newcomers
// need:
//
//   stretto::ElasticJob job;
//   while (const auto comm = job.join()) {  // Null: the job has finished.
//     try {
//       State newest = state;
//       comm->broadcast(newest.values).wait();  // From rank 0.
//       state = newest;
//       if (train(job, *comm, state)) job.finish();  // False: job.has_newcomers(*comm).
//     } catch (const stretto::Error& error) {
//       if (!stretto::ElasticJob::is_loss(error)) throw;
//     }
//   }
//
// A failure must not leave `state` half changed: any rank may be rank 0 of the next generation.
// Change it only when the last operation of a step has ended. Some ranks may then have finished a
// step that others have not; the state of rank 0 counts.
//
// join() waits for every living process of the last generation, so all of them have to call it. If
// the failed operation has succeeded on a process, that process gets the error from its next
// operation, which fails as soon as another rank has destroyed its communicator. A process that
// hangs but lives makes the others time out, in the operation and then in join(), until somebody
// kills it. A process leaves the job when its ElasticJob is destroyed. Destroy the communicator
// first.
//
// The processes meet in the store of a `stretto run` (that of its first host), and the job ends
// with it. A process that no launcher has started needs STRETTO_RENDEZVOUS and STRETTO_JOB_KEY
// (stretto run --rendezvous, --print-job-key); without these, and without a launcher, it is a job
// of its own. Other launchers end or restart a job as a whole, and are rejected.
//
// A process keeps its GPU, though its rank changes. A process that `stretto run` starts in the
// place of another takes that one's GPU. A process that is started by hand must name a GPU that no
// other process uses (JoinOptions::device).
//
// Threads: one at a time.
class ElasticJob {
 public:
  // Enters the job. Blocks until the store is there, for join_timeout at most. Throws
  // InvalidArgument, Refused (wrong key, other version), Mismatch (transport, backend, encryption,
  // algorithm or min_size are not the job's), Timeout, SystemError.
  explicit ElasticJob(const ElasticOptions& options = {});
  ~ElasticJob();
  ElasticJob(const ElasticJob&) = delete;
  ElasticJob& operator=(const ElasticJob&) = delete;

  // Returns the communicator of the next generation. The first generation waits for as many
  // processes as the launcher starts. Null if the job has finished, also while this process waited.
  // Destroy the last communicator before, or the others may not notice that the generation has
  // ended. Blocks. If a process dies meanwhile, it begins anew. Throws Timeout, naming the missing
  // processes, and may then be called again; Aborted if the network to the store was down and the
  // others have taken this process for dead; PeerLost or SystemError if the store is gone. A
  // process that has never met the others and cannot connect to them throws the reason (Timeout,
  // Refused, ...) and leaves the job; the others meet without it.
  std::unique_ptr<Communicator> join();

  // Whether a new process waits to be admitted; then all ranks have to leave the communicator and
  // call join(). Collective: rank 0 asks the store, which takes some hundred microseconds, and
  // tells the others. Ask more often than newcomers wait (join_timeout).
  bool has_newcomers(Communicator& communicator);

  // Says that all steps are done. From now on join() returns null in every process, so that a
  // process that comes late, or again, does not begin from the start. One rank suffices. Throws as
  // join() if the store is gone.
  void finish();

  // Whether `error`, of an operation, says that a process is lost or does not answer, so that the
  // others may meet again: PeerLost, Aborted, Timeout.
  static bool is_loss(const Error& error);

  // The generation of the last communicator that join() has returned, counted from 1; 0: none yet.
  int generation() const { return generation_; }
  // A store in which the members of that generation may leave notes for each other, or make another
  // communicator by make_communicator(); the library does not use it. Waits in it fail with
  // peer_lost when a member has left the job or died. Null if the last join() has returned no
  // communicator. May outlive the job.
  std::shared_ptr<bootstrap::Store> store() const { return store_; }

 private:
  Deadline limit() const;
  Result<std::unique_ptr<Communicator>> join_alone();
  Result<std::unique_ptr<Communicator>> join_others();
  Result<std::unique_ptr<Communicator>> meet(const job::Generation& generation);

  const ElasticOptions options_;
  const std::unique_ptr<const job::ElasticPlace> place_;
  const std::unique_ptr<job::Membership> membership_;  // Null: the process is alone.
  int generation_ = 0;
  std::optional<int> device_;  // Of the last generation: the program's data is there.
  bool finished_alone_ = false;
  std::shared_ptr<bootstrap::Store> store_;
};

}  // namespace stretto

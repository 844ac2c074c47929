// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>

#include "stretto/base/clock.h"
#include "stretto/base/status.h"
#include "stretto/bootstrap/handshake.h"
#include "stretto/bootstrap/join_notes.h"
#include "stretto/bootstrap/store_server.h"
#include "stretto/job/job.h"

namespace stretto::job {

// The store in which the ranks of a job meet while they join, and the job's key. If the launcher
// has no store, rank 0 provides it; it ends with rank 0's object, and ranks that have not finished
// then fail with peer_lost. If a rank fails or ends before it has finished, the join ends on all
// ranks with its reason; a process that is no rank of this job does not end it. Used by one thread.
class Rendezvous {
 public:
  // Opens the meeting place of a job of several ranks. Blocks until rank 0 is there; a failure of
  // another rank fails here, too. Fails with timeout; with refused if the key, the version or the
  // file is wrong, or if another process has come as the same rank (two jobs use one place, or an
  // earlier job has left its file); with peer_lost if that process is gone; with mismatch if ranks
  // disagree on the size. In a store of PyTorch's, ranks can meet repeatedly, also after they were
  // started again: a rank that has come before, or that finds that the last meeting has failed,
  // waits for rank 0 to come again.
  static Result<std::unique_ptr<Rendezvous>> open(const Job& job, Deadline deadline);
  // If the join has failed and rank 0 provides the place, waits about a second for late ranks to
  // come and learn of it, and up to a second for its clients to leave.
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  bootstrap::JoinNotes& notes() { return *notes_; }
  const bootstrap::JobKey& key() const { return key_; }
  // To be called when this rank is connected. Blocks until all ranks have called it. If rank 0
  // provides the place, it is gone then, and the next job can use it. Fails with timeout, naming
  // the ranks that have not come so far, or with another rank's failure.
  Status finish();

 private:
  explicit Rendezvous(const Job& job) : job_(job) {}
  // Whether the place belongs to this job alone and ends with its start.
  bool passing() const {
    return job_.rendezvous_kind == RendezvousKind::file ||
           job_.rendezvous_kind == RendezvousKind::rank_0_store;
  }
  Status open_store(Deadline deadline);
  Status connect(const std::string& owner, Deadline deadline);
  Status serve(Deadline deadline);
  Status enter_round(Deadline deadline);
  Status begin_round(bootstrap::JoinNotes& rounds, Deadline deadline);
  Status arrive(Deadline deadline);
  Status agree_on_size();
  Status agree_on_key();
  void wait_for_clients_to_leave();
  Status end_place();

  const Job job_;
  // The key that a client proves to the server. Without one in the job, this is the default key and
  // the server serves everybody, as torchrun's does: the handshake only tells versions and
  // strangers apart.
  bootstrap::JobKey job_key_ = job_.key.value_or(bootstrap::JobKey());
  std::unique_ptr<bootstrap::StoreServer> server_;
  bool owns_file_ = false;
  std::shared_ptr<bootstrap::Store> store_;
  std::unique_ptr<bootstrap::JoinNotes> notes_;
  bootstrap::JobKey key_;
};

}  // namespace stretto::job

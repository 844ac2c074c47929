// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/wait_limit.h"
#include "tools/launch/guardian.h"
#include "tools/launch/host.h"
#include "tools/launch/outcome.h"
#include "tools/launch/output_relay.h"
#include "tools/launch/signals.h"

namespace stretto::bootstrap {
class Store;
class StoreServer;
}  // namespace stretto::bootstrap

namespace stretto::launch {

// The ranks of this host, and, on the first of a job, the store in which they meet.
class LocalHost final : public Host {
 public:
  // Call it before the process has a second thread. Both must outlive this. A failure of
  // `told_to_end` ends start(), which may have to wait until the name of this host is known.
  static Result<std::unique_ptr<LocalHost>> create(const LaunchOptions& options, OutputRelay& relay,
                                                   WaitLimit::Interruption told_to_end);
  ~LocalHost() override;

  Status start() override;
  int fd() const override { return guardian_.fd(); }
  Result<std::optional<RankEvent>> next() override;
  void restart(int local_rank, int number) override;
  void send(int signal) override;
  void tell_obituary(int rank, const std::string& how) override {
    board_.write_obituary(rank, how);
  }
  // From now on the ranks wait for a moment for that, too.
  void promise_obituaries_of_all();
  void give_up() override;
  Status end() override { return guardian_.end(); }
  // Keeps the store for the ranks of other hosts, who may still be reading; or, if the job has
  // failed while it was starting, come a little later, and find in the store why. For the processes
  // of an elastic job, wherever they have been started, until all have left, or the time limit;
  // true: that has ended it. Until a signal that asks this process to end.
  bool linger(const Signals& signals, const JobOutcome& outcome, Deadline time_limit);

 private:
  LocalHost(const LaunchOptions& options, OutputRelay& relay, WaitLimit::Interruption told_to_end,
            job::LauncherBoard board, Guardian guardian);

  void take_started(RankEvent& event);
  void note_end(RankEvent& event);
  void tell_joiners(const RankOutcome& outcome);
  // To processes that are still there.
  bool serves_elastic_job() const;
  // Null if there is none.
  std::unique_ptr<bootstrap::Store> connect_to_store() const;

  const LaunchOptions& options_;
  OutputRelay& relay_;
  const WaitLimit::Interruption told_to_end_;
  job::LauncherBoard board_;
  Guardian guardian_;
  std::string rendezvous_;
  FileDescriptor reserved_;  // A port for a store of PyTorch's.
  std::unique_ptr<bootstrap::StoreServer> server_;
  std::vector<pid_t> pids_;  // By local rank; 0 while one is started again.
  std::vector<int> signals_sent_;
  // As a place in these: when the rank was to be started that starts next. Restarts come one after
  // the other, once all ranks have started for the first time.
  std::size_t signals_before_start_ = 0;
  std::optional<long> kills_ = out_of_memory_kills();
  long unexplained_kills_ = 0;  // Since then, but for those of ranks that have ended by SIGKILL.
  // A rank has failed, or all have been told to end.
  bool ending_ = false;
  TimePoint look_for_store_;  // Not before, as there was none.
};

}  // namespace stretto::launch

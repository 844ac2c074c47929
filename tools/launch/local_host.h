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

// The ranks of this host. On a job's first host also the store in which the ranks meet.
class LocalHost final : public Host {
 public:
  // Call it before the process has a second thread. `options` and `relay` must outlive the result.
  // start() may wait until the name of this host is known; it fails as soon as `told_to_end` does.
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
  // From now on the ranks also wait a moment for obituaries of ranks of other hosts.
  void promise_obituaries_of_all();
  void give_up() override;
  Status end() override { return guardian_.end(); }
  // Keeps the store while ranks of other hosts may still be reading it, for at most 30 s; or, if
  // the job failed while it was starting, for 3 s, so that late ranks find the reason there. For an
  // elastic job, keeps it until all of its processes, wherever they were started, have left; if the
  // time limit or a signal ends this wait, that goes into `outcome`, and a sentence is returned. A
  // signal that asks this process to end ends every wait.
  std::string linger(const Signals& signals, JobOutcome& outcome, Deadline time_limit);

 private:
  LocalHost(const LaunchOptions& options, OutputRelay& relay, WaitLimit::Interruption told_to_end,
            job::LauncherBoard board, Guardian guardian);

  void take_started(RankEvent& event);
  void note_end(RankEvent& event);
  void tell_joiners(const RankOutcome& outcome);
  // Whether processes of an elastic job still use the store.
  bool serves_elastic_job() const;
  // Null if it cannot be reached.
  std::unique_ptr<bootstrap::Store> connect_to_store() const;

  const LaunchOptions& options_;
  OutputRelay& relay_;
  const WaitLimit::Interruption told_to_end_;
  job::LauncherBoard board_;
  Guardian guardian_;
  std::string rendezvous_;
  FileDescriptor reserved_;  // Keeps a port for a PyTorch store.
  std::unique_ptr<bootstrap::StoreServer> server_;
  std::vector<pid_t> pids_;  // By local rank; 0 while the rank is started again.
  std::vector<int> signals_sent_;
  // How many of signals_sent_ were sent before the start of the rank that starts next was ordered.
  // Restarts come one after the other, once all ranks have started for the first time.
  std::size_t signals_before_start_ = 0;
  std::optional<long> kills_ = out_of_memory_kills();
  long unexplained_kills_ = 0;  // Since create(), less ranks that ended by SIGKILL.
  // A rank has failed, or all ranks have been told to end.
  bool ending_ = false;
  TimePoint look_for_store_;  // When to look for one again, after none was found.
};

}  // namespace stretto::launch

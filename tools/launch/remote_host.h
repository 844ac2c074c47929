// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/launch/host.h"
#include "tools/launch/line_reader.h"
#include "tools/launch/options.h"
#include "tools/launch/output_relay.h"

namespace stretto::launch {

// The ranks of another host, where a remote shell, ssh say, runs this program as an agent. The end
// of either process, of this one or of the connection ends the ranks.
class RemoteHost final : public Host {
 public:
  // `options` must outlive it.
  RemoteHost(const LaunchOptions& options, int host_index);
  RemoteHost(const RemoteHost&) = delete;
  RemoteHost& operator=(const RemoteHost&) = delete;
  ~RemoteHost() override { (void)end().ok(); }

  Status start() override;
  int fd() const override { return pause_.valid() ? pause_.get() : events_.get(); }
  Result<std::optional<RankEvent>> next() override;
  void restart(int local_rank, int number) override;
  void send(int signal) override;
  void tell_obituary(int rank, const std::string& how) override;
  void give_up() override;
  bool waits_for_reader() const override;
  void tell_to_end() override;
  Status end() override;

 private:
  std::string name() const;
  Result<FileDescriptor> make_orders();
  Status write_order() const;
  bool write_line(std::string_view line) const;
  Status after_shell();
  void wait_for_shell();
  bool all_ended() const;
  bool is_writing() const;
  std::optional<RankEvent> next_lost();

  const LaunchOptions& options_;
  const int host_index_;
  const Deadline reach_until_;
  // Of each local rank: whether its end has been told.
  std::vector<bool> ended_;
  std::string marker_;
  pid_t shell_ = -1;
  int shell_status_ = 0;
  // The agent's standard input, and the marked lines of its standard error.
  FileDescriptor orders_;
  FileDescriptor events_;
  // Of its standard output, and of its standard error, so that events come also while nobody reads
  // the output.
  std::unique_ptr<OutputRelay> output_relay_;
  std::unique_ptr<OutputRelay> events_relay_;
  LineReader lines_;
  bool heard_ = false;
  // It is no longer wanted.
  bool ending_ = false;
  // A timer, between two attempts to reach the host.
  FileDescriptor pause_;
};

}  // namespace stretto::launch

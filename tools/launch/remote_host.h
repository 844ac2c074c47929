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

// The ranks of another host, where a remote shell such as ssh runs this program as an agent. The
// ranks end when this process, the agent or the connection ends.
class RemoteHost final : public Host {
 public:
  // `options` must outlive the object.
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
  // For each local rank: whether its end has been reported.
  std::vector<bool> ended_;
  std::string marker_;
  pid_t shell_ = -1;
  int shell_status_ = 0;
  // The agent's standard input, and the marked lines of its standard error.
  FileDescriptor orders_;
  FileDescriptor events_;
  // One relays the agent's standard output, the other its standard error, so that events arrive
  // even while nobody reads the output.
  std::unique_ptr<OutputRelay> output_relay_;
  std::unique_ptr<OutputRelay> events_relay_;
  LineReader lines_;
  bool heard_ = false;
  // The host has been told to end before its agent answered.
  bool ending_ = false;
  // A timer that runs between two attempts to reach the host.
  FileDescriptor pause_;
};

}  // namespace stretto::launch

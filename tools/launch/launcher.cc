// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/launcher.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "stretto/base/cores.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/status_board.h"
#include "stretto/bootstrap/store_server.h"
#include "tools/launch/child.h"
#include "tools/launch/guardian.h"
#include "tools/launch/outcome.h"
#include "tools/launch/output_relay.h"
#include "tools/launch/rank_environment.h"
#include "tools/launch/rank_processes.h"
#include "tools/launch/signals.h"

namespace stretto::launch {
namespace {

void say(std::string_view sentence) {
  write_fully(STDERR_FILENO, fmt::format("stretto run: {}\n", sentence));
}

// Where the ranks meet. Launcher 0 serves there; the others only know the address.
struct Rendezvous {
  std::string address;
  std::unique_ptr<bootstrap::StoreServer> server;
};

Result<Rendezvous> open_rendezvous(const LaunchOptions& options) {
  bootstrap::HostPort where{"127.0.0.1", 0};
  if (!options.rendezvous.empty()) {
    Result<bootstrap::HostPort> parsed = bootstrap::parse_host_port(options.rendezvous);
    if (!parsed.ok()) return parsed.status().with_context("--rendezvous");
    where = std::move(*parsed);
  } else if (options.hosts.size() > 1) {
    where = {options.hosts.front(), kDefaultPort};
  }
  Rendezvous rendezvous;
  if (options.host_index == 0) {
    auto server =
        bootstrap::StoreServer::start({.host = where.host, .port = where.port, .key = options.key});
    if (!server.ok()) return server.status();
    rendezvous.server = std::move(*server);
    where.port = rendezvous.server->port();
  }
  rendezvous.address = bootstrap::format_host_port(where.host, where.port);
  return rendezvous;
}

// The launcher's part between the first start and the last end.
class Job {
 public:
  Job(const LaunchOptions& options, const Signals& signals, const Guardian& guardian)
      : options_(options), signals_(signals), guardian_(guardian) {}

  // 0, or why the ranks could not be started, as an exit status.
  int start();
  JobOutcome run();

 private:
  // What happens to the ranks that are left after a failure, one step after the other.
  enum class Stage { running, settling, ending, killing };

  Status prepare();
  Result<Child> start_rank(int local_rank, StartFailure& failure);
  void handle(int signal);
  void advance();
  void enter(Stage stage, Deadline until);
  void linger(const JobOutcome& outcome);

  const LaunchOptions& options_;
  const Signals& signals_;
  const Guardian& guardian_;
  Rendezvous rendezvous_;
  bootstrap::StatusBoardReader board_;
  RankProcesses processes_;
  OutputRelay relay_;
  std::optional<long> kills_before_;
  Stage stage_ = Stage::running;
  Deadline stage_ends_;
  bool time_limit_reached_ = false;
  int interrupts_ = 0;
};

int Job::start() {
  const Status prepared = prepare();
  if (!prepared.ok()) {
    say(prepared.message());
    return 1;
  }
  for (int local_rank = 0; local_rank < options_.ranks_per_host; ++local_rank) {
    StartFailure failure;
    Result<Child> child = start_rank(local_rank, failure);
    if (!child.ok()) {
      say(child.status().message());
      if (failure.error_number == 0) return 1;
      return failure.error_number == ENOENT ? 127 : 126;
    }
    const int rank = options_.rank_of(local_rank);
    guardian_.watch(child->pid);
    processes_.add(rank, child->pid);
    const auto prefix = [&](int fd) {
      return options_.prefix ? rank_prefix(rank, wants_colour(fd)) : std::string();
    };
    relay_.add(std::move(child->output), STDOUT_FILENO, prefix(STDOUT_FILENO));
    relay_.add(std::move(child->errors), STDERR_FILENO, prefix(STDERR_FILENO));
  }
  const Status relaying = relay_.start();
  if (relaying.ok()) return 0;
  say(relaying.message());
  return 1;
}

Status Job::prepare() {
  Result<Rendezvous> rendezvous = open_rendezvous(options_);
  if (!rendezvous.ok()) return rendezvous.status();
  rendezvous_ = std::move(*rendezvous);
  auto board =
      bootstrap::StatusBoardReader::create(static_cast<std::size_t>(options_.ranks_per_host));
  if (!board.ok()) return board.status();
  board_ = std::move(*board);
  kills_before_ = out_of_memory_kills();
  if (options_.time_limit > Duration::zero()) {
    stage_ends_ = Deadline::after(options_.time_limit);
  }
  return {};
}

Result<Child> Job::start_rank(int local_rank, StartFailure& failure) {
  const RankPlace place{.local_rank = local_rank,
                        .rendezvous = rendezvous_.address,
                        .status_fd = board_.fd(),
                        .usable_cores = usable_cores()};
  return start_child({.command = options_.command,
                      .environment = rank_environment(options_, place, inherited_environment()),
                      .inherited_fd = board_.fd()},
                     failure);
}

JobOutcome Job::run() {
  while (!processes_.all_ended()) {
    const std::optional<int> signal = signals_.wait(stage_ends_);
    if (signal) {
      handle(*signal);
    } else {
      advance();
    }
  }
  processes_.kill_and_reap_all();
  relay_.finish();
  JobOutcome outcome{.ranks = processes_.outcomes(),
                     .out_of_memory_kills = 0,
                     .time_limit = options_.time_limit,
                     .time_limit_reached = time_limit_reached_};
  if (const auto kills = out_of_memory_kills(); kills && kills_before_) {
    outcome.out_of_memory_kills = *kills - *kills_before_;
  }
  linger(outcome);
  return outcome;
}

void Job::linger(const JobOutcome& outcome) {
  if (rendezvous_.server == nullptr || outcome.exit_status() != 0) return;
  constexpr Duration kLookAgain = std::chrono::milliseconds(20);
  const Deadline deadline = Deadline::after(options_.linger_time);
  while (rendezvous_.server->client_count() > 0 && !deadline.passed()) {
    // Somebody who wants the launcher to end shall not have to wait for other hosts.
    const std::optional<int> signal = signals_.wait(Deadline::after(kLookAgain));
    if (signal && *signal != SIGCHLD) return;
  }
}

void Job::handle(int signal) {
  if (signal == SIGCHLD) {
    const bool failure = processes_.notice_ended(board_);
    if (failure && stage_ == Stage::running) {
      enter(Stage::settling, Deadline::after(options_.settle_time));
    }
  } else if (signal == SIGINT && ++interrupts_ > 1) {
    enter(Stage::killing, Deadline());
  } else {
    processes_.pass_on(signal);
  }
}

void Job::advance() {
  if (stage_ == Stage::running) time_limit_reached_ = true;
  if (stage_ == Stage::ending) {
    enter(Stage::killing, Deadline());
  } else {
    enter(Stage::ending, Deadline::after(options_.grace_time));
  }
}

void Job::enter(Stage stage, Deadline until) {
  stage_ = stage;
  stage_ends_ = until;
  if (stage == Stage::ending) processes_.tell_to_end(SIGTERM);
  if (stage == Stage::killing) processes_.tell_to_end(SIGKILL);
}

}  // namespace

int launch(const LaunchOptions& options) {
  const Result<Signals> signals = Signals::open();
  const Result<Guardian> guardian = Guardian::start();
  for (const Status& status : {signals.status(), guardian.status()}) {
    if (status.ok()) continue;
    say(status.message());
    return 1;
  }
  Job job(options, signals.value(), guardian.value());
  if (const int status = job.start(); status != 0) return status;
  const JobOutcome outcome = job.run();
  write_fully(STDERR_FILENO, report(outcome));
  if (options.json) write_fully(STDOUT_FILENO, report_json(outcome));
  return outcome.exit_status();
}

}  // namespace stretto::launch

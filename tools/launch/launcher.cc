// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/launcher.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <list>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/descriptor_limit.h"
#include "tools/launch/child.h"
#include "tools/launch/local_host.h"
#include "tools/launch/outcome.h"
#include "tools/launch/output_relay.h"
#include "tools/launch/remote_host.h"
#include "tools/launch/signals.h"

namespace stretto::launch {
namespace {

// Ends the launcher before there are ranks. Returns its exit status.
int give_up(const LaunchOptions& options, const Status& why) {
  write_fully(STDERR_FILENO, fmt::format("stretto run: {}\n", why.message()));
  const JobOutcome outcome{.launcher_status = 1};
  if (options.json) write_own_lines(STDOUT_FILENO, report_json(outcome));
  return outcome.exit_status();
}

// Whether a signal asks the launcher to end.
bool asks_to_end(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

// Fails if a signal that asks to end is pending.
Status told_to_end() {
  sigset_t pending;
  ::sigemptyset(&pending);
  ::sigpending(&pending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (::sigismember(&pending, signal) == 1) {
      return status_of(StatusCode::system, "ended by a signal before any rank had been started");
    }
  }
  return {};
}

// A second request to end within this time counts as the same one: timeout(1) sends it to the
// launcher and to its group, and service managers do the like.
constexpr Duration kSameRequest = std::chrono::milliseconds(100);

// Time between the end of a rank and its next start, in which the other ranks read how it has
// ended. It also keeps a program that always fails at once from using up all restarts.
constexpr Duration kRestartPause = std::chrono::seconds(1);

// How long the news that ranks have ended may take once the output before it is read.
constexpr Duration kUnreadTime = std::chrono::seconds(1);

// Descriptors that this process needs for each host that a remote shell leads to, with a share of
// its own.
constexpr std::size_t kDescriptorsOfHost = 12;

// The ranks that a launcher looks after: who runs, who has ended and how.
class RankProcesses {
 public:
  // Adds a rank with its number and host. Call it in the order of the numbers, without gaps.
  void add(RankOutcome rank);
  void note_start(int rank, const RankEvent& event);
  const RankOutcome& note_end(int rank, const RankEvent& event);
  // Notes that another process is to take the rank's place, on `host`.
  void note_restart(int rank, const Host& host);
  // Notes a signal that the launcher sends to all ranks. `told_to_end`: the signal ends the job.
  void note_signal(int signal, bool told_to_end);
  // Whether all ranks have had their first start.
  bool all_started() const;
  // Whether `host` has a restart without a note_start() so far.
  bool restarting(const Host& host) const;
  bool has_ended(int rank) { return at(rank).stage == Stage::ended; }
  bool all_ended() const;
  // The ranks that have not ended: "0, 3".
  std::string names_of_left() const;
  std::vector<RankOutcome> outcomes() const;

 private:
  enum class Stage { awaited, running, ended, restarting };
  struct Process {
    RankOutcome outcome;
    Stage stage = Stage::awaited;
    const Host* restarting_on = nullptr;
  };

  Process& at(int rank) {
    return processes_[static_cast<std::size_t>(rank - processes_.front().outcome.rank)];
  }

  std::vector<Process> processes_;
};

void RankProcesses::add(RankOutcome rank) {
  rank.started = Clock::now();
  processes_.push_back({.outcome = std::move(rank)});
}

void RankProcesses::note_start(int rank, const RankEvent& event) {
  Process& process = at(rank);
  process.stage = Stage::running;
  process.outcome.pid = event.pid;
  process.outcome.started = event.at;
}

const RankOutcome& RankProcesses::note_end(int rank, const RankEvent& event) {
  Process& process = at(rank);
  process.stage = Stage::ended;
  process.outcome.note_end(event);
  return process.outcome;
}

void RankProcesses::note_restart(int rank, const Host& host) {
  Process& process = at(rank);
  const RankOutcome& last = process.outcome;
  process = {.outcome = {.rank = rank,
                         .host = last.host,
                         .started = Clock::now(),
                         .restarts = last.restarts + 1},
             .stage = Stage::restarting,
             .restarting_on = &host};
}

void RankProcesses::note_signal(int signal, bool told_to_end) {
  for (Process& process : processes_) {
    if (process.stage == Stage::ended) continue;
    process.outcome.signals_sent.push_back(signal);
    process.outcome.told_to_end |= told_to_end;
  }
}

bool RankProcesses::all_started() const {
  return std::ranges::count(processes_, Stage::awaited, &Process::stage) == 0;
}

bool RankProcesses::restarting(const Host& host) const {
  return std::ranges::any_of(processes_, [&](const Process& process) {
    return process.stage == Stage::restarting && process.restarting_on == &host;
  });
}

bool RankProcesses::all_ended() const {
  return std::ranges::count(processes_, Stage::ended, &Process::stage) == std::ssize(processes_);
}

std::string RankProcesses::names_of_left() const {
  std::string names;
  for (const Process& process : processes_) {
    if (process.stage == Stage::ended) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", process.outcome.rank);
  }
  return names;
}

std::vector<RankOutcome> RankProcesses::outcomes() const {
  std::vector<RankOutcome> outcomes;
  for (const Process& process : processes_) outcomes.push_back(process.outcome);
  return outcomes;
}

using Hosts = std::vector<std::unique_ptr<Host>>;

// The launcher's part between the first start and the last end.
class LaunchedJob {
 public:
  // `first_host`: the index of hosts.front() in options.hosts. `relay` prints the job's messages.
  LaunchedJob(const LaunchOptions& options, const Signals& signals, const Hosts& hosts,
              int first_host, OutputRelay& relay);

  // Returns 0 when all ranks have started and ended, or it has given up; else an exit status.
  int run();
  // Ends the hosts after run(): blocks until nothing of the ranks is left, or says what is.
  void end() const;
  // `launcher_status`: what run() has returned.
  JobOutcome outcome(int launcher_status) const;
  Deadline time_limit() const { return time_limit_; }

 private:
  // What happens to the ranks that are left after a failure, one step after the other.
  enum class Stage { running, settling, ending, killing, giving_up };

  // A rank that has failed and is to be started again.
  struct Restart {
    Host& host;
    int rank;
    int local_rank;
    int number;
    Deadline at;
  };

  // Return an exit status if the job is over.
  std::optional<int> take_events();
  std::optional<int> take(Host& host, int first_rank, const RankEvent& event);
  // Until when the launcher only waits for events and signals.
  Deadline next_step() const;
  // The first of restarts_ whose host has no restart under way. Each host does one after the other,
  // so that an order always finds room in its socket.
  std::list<Restart>::const_iterator next_restart() const;
  // Restarts the rank of next_restart(), if its pause is over.
  void start_again();
  void handle(int signal);
  void send(int signal, bool told_to_end);
  void advance();
  void kill();
  void enter(Stage stage, Deadline until, int signal = 0);
  void say(std::string_view sentence) const {
    relay_.say(fmt::format("stretto run: {}\n", sentence));
  }

  const LaunchOptions& options_;
  const Signals& signals_;
  const Hosts& hosts_;
  const int first_host_;
  OutputRelay& relay_;
  RankProcesses processes_;
  std::optional<long> kills_before_ = out_of_memory_kills();
  bool was_unread_ = false;  // When stage killing last ran out of time.
  Stage stage_ = Stage::running;
  Deadline stage_ends_;
  Deadline time_limit_;
  std::list<Restart> restarts_;
  int restart_count_ = 0;  // Including those that have been done.
  bool time_limit_reached_ = false;
  int ended_by_ = 0;
  TimePoint asked_to_end_at_{};
};

LaunchedJob::LaunchedJob(const LaunchOptions& options, const Signals& signals, const Hosts& hosts,
                         int first_host, OutputRelay& relay)
    : options_(options), signals_(signals), hosts_(hosts), first_host_(first_host), relay_(relay) {
  const auto last_host = first_host + static_cast<int>(hosts.size());
  for (int host = first_host; host < last_host; ++host) {
    const HostShare& share = options.hosts[static_cast<std::size_t>(host)];
    for (int i = 0; i < share.ranks; ++i) {
      processes_.add({.rank = options.ranks_before(host) + i,
                      .host = options.remote_shell.empty() ? std::string() : share.name,
                      .starter = options.starter});
    }
  }
  if (options.time_limit > Duration::zero()) {
    stage_ends_ = time_limit_ = Deadline::after(options.time_limit);
  }
}

int LaunchedJob::run() {
  for (const auto& host : hosts_) {
    const Status status = host->start();
    if (status.ok()) continue;
    say(status.message());
    while (const auto signal = signals_.wait(Deadline::after(Duration::zero()), {})) {
      if (!asks_to_end(*signal)) continue;
      ended_by_ = *signal;
      return 128 + *signal;
    }
    time_limit_reached_ = time_limit_.passed();
    return time_limit_reached_ ? kTimeLimitStatus : 1;
  }
  while (stage_ != Stage::giving_up && (!processes_.all_ended() || !restarts_.empty())) {
    std::vector<int> fds;
    for (const auto& host : hosts_) fds.push_back(host->fd());
    if (const std::optional<int> signal = signals_.wait(next_step(), fds)) {
      if (asks_to_end(*signal) && !processes_.all_started()) {
        say("ended by a signal before all ranks had been started");
        ended_by_ = *signal;
        return 128 + *signal;
      }
      handle(*signal);
      continue;
    }
    start_again();
    if (const auto status = take_events()) return *status;
    if (stage_ends_.passed()) advance();
  }
  return 0;
}

void LaunchedJob::end() const {
  for (const auto& host : hosts_) host->tell_to_end();
  for (const auto& host : hosts_) {
    const Status ended = host->end();
    if (!ended.ok()) say(ended.message());
  }
}

JobOutcome LaunchedJob::outcome(int launcher_status) const {
  JobOutcome outcome{.ranks = processes_.outcomes(),
                     .out_of_memory_kills = 0,
                     .time_limit = options_.time_limit,
                     .time_limit_reached = time_limit_reached_,
                     .ended_by = ended_by_,
                     .launcher_status = launcher_status};
  if (const auto kills = out_of_memory_kills(); kills && kills_before_) {
    outcome.out_of_memory_kills = *kills - *kills_before_;
  }
  if (!processes_.all_ended() && outcome.exit_status() == 0) outcome.launcher_status = 1;
  return outcome;
}

std::optional<int> LaunchedJob::take_events() {
  int first_rank = options_.ranks_before(first_host_);
  int index = first_host_;
  for (const auto& host : hosts_) {
    while (true) {
      const Result<std::optional<RankEvent>> event = host->next();
      if (!event.ok()) {
        // The host's ranks are dead, or nobody can tell what happens to them.
        send(SIGKILL, true);
        say(event.status().message());
        return 1;
      }
      if (!event.value()) break;
      if (const auto status = take(*host, first_rank, *event.value())) return status;
    }
    first_rank += options_.hosts[static_cast<std::size_t>(index++)].ranks;
  }
  return std::nullopt;
}

std::optional<int> LaunchedJob::take(Host& host, int first_rank, const RankEvent& event) {
  switch (event.kind) {
    case RankEvent::Kind::started:
      processes_.note_start(first_rank + event.local_rank, event);
      return std::nullopt;
    case RankEvent::Kind::not_started:
      say(event.text);
      if (event.number == 0) return 1;
      return event.number == ENOENT ? 127 : 126;
    case RankEvent::Kind::exited:
    case RankEvent::Kind::killed:
    case RankEvent::Kind::lost:
      break;
  }
  // Hosts report each end once. If one repeats itself, that must not affect a running rank.
  if (processes_.has_ended(first_rank + event.local_rank)) return std::nullopt;
  if (event.kind == RankEvent::Kind::exited && !event.text.empty()) say(event.text);
  const RankOutcome& outcome = processes_.note_end(first_rank + event.local_rank, event);
  // The rank's own host has told its other ranks. Once all ranks are told to end, nobody needs the
  // news.
  const bool is_news = outcome.failed() && stage_ <= Stage::settling;
  for (const auto& other : hosts_) {
    if (is_news && other.get() != &host) other->tell_obituary(outcome.rank, event.obituary);
  }
  if (event.kind == RankEvent::Kind::lost) restarts_.clear();  // A lost host ends the job.
  if (!outcome.failed() || stage_ != Stage::running) return std::nullopt;
  if (restart_count_ < options_.restarts && event.kind != RankEvent::Kind::lost) {
    restarts_.push_back(
        {host, outcome.rank, event.local_rank, ++restart_count_, Deadline::after(kRestartPause)});
    say(restart_notice(outcome, restart_count_, options_.restarts));
    return std::nullopt;
  }
  // Announced restarts still take place in this time.
  const Deadline settled = Deadline::after(options_.settle_time);
  enter(Stage::settling, settled.time() < time_limit_.time() ? settled : time_limit_);
  return std::nullopt;
}

Deadline LaunchedJob::next_step() const {
  const auto next = next_restart();
  if (next == restarts_.end()) return stage_ends_;
  return Deadline(std::min(stage_ends_.time(), next->at.time()));
}

std::list<LaunchedJob::Restart>::const_iterator LaunchedJob::next_restart() const {
  return std::find_if(restarts_.begin(), restarts_.end(), [this](const Restart& restart) {
    return !processes_.restarting(restart.host);
  });
}

void LaunchedJob::start_again() {
  const auto next = next_restart();
  if (next == restarts_.end() || !next->at.passed()) return;
  const Restart restart = *next;
  restarts_.erase(next);
  for (const auto& other : hosts_) {
    if (other.get() != &restart.host) other->tell_obituary(restart.rank, {});
  }
  processes_.note_restart(restart.rank, restart.host);
  restart.host.restart(restart.local_rank, restart.number);
}

void LaunchedJob::handle(int signal) {
  if (!asks_to_end(signal)) return send(signal, false);
  if (Clock::now() - asked_to_end_at_ < kSameRequest) return;
  asked_to_end_at_ = Clock::now();
  if (ended_by_ != 0) return kill();
  ended_by_ = signal;
  // Ranks that are already told to end keep the rest of their time.
  if (stage_ < Stage::ending) enter(Stage::ending, Deadline::after(options_.grace_time), signal);
}

void LaunchedJob::advance() {
  if (stage_ <= Stage::settling && time_limit_.passed()) time_limit_reached_ = true;
  if (stage_ == Stage::killing) {
    const bool is_unread = std::any_of(hosts_.begin(), hosts_.end(),
                                       [](const auto& host) { return host->waits_for_reader(); });
    if (std::exchange(was_unread_, is_unread) || is_unread) {
      stage_ends_ = Deadline::after(kUnreadTime);
      return;
    }
    say(
        fmt::format("not ended on SIGKILL, as may happen in a driver that hangs: rank {}; this "
                    "launcher does not wait any longer",
                    processes_.names_of_left()));
    for (const auto& host : hosts_) host->give_up();
    enter(Stage::giving_up, Deadline());
  } else if (stage_ == Stage::ending) {
    kill();
  } else {
    enter(Stage::ending, Deadline::after(options_.grace_time), SIGTERM);
  }
}

void LaunchedJob::kill() {
  const Deadline killed = Deadline::after(kKillTime);
  enter(Stage::killing, stage_ == Stage::killing ? stage_ends_ : killed, SIGKILL);
}

// Enters `stage`; sends `signal`, unless 0, to end the ranks. From Stage::ending on, no rank is
// started again.
void LaunchedJob::enter(Stage stage, Deadline until, int signal) {
  if (stage >= Stage::ending) restarts_.clear();
  stage_ = stage;
  stage_ends_ = until;
  if (signal != 0) send(signal, true);
}

void LaunchedJob::send(int signal, bool told_to_end) {
  processes_.note_signal(signal, told_to_end);
  for (const auto& host : hosts_) host->send(signal);
}

// Opens those of the standard streams that are closed; otherwise the next file that is opened would
// become one of them.
void open_standard_streams() {
  int fd = -1;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

}  // namespace

int launch(const LaunchOptions& options) {
  open_standard_streams();
  const Result<Signals> signals = Signals::open();
  if (!signals.ok()) return give_up(options, signals.status());
  OutputRelay relay;
  OutputRelay notices;  // Has its own thread: stderr may be read while the ranks' output is not.
  Hosts hosts;
  LocalHost* local = nullptr;
  if (options.remote_shell.empty()) {
    Result<std::unique_ptr<LocalHost>> host = LocalHost::create(options, relay, told_to_end);
    if (!host.ok()) return give_up(options, host.status());
    local = host->get();
    hosts.push_back(std::move(*host));
  } else {
    allow_descriptors(kDescriptorsOfHost * options.hosts.size());
    for (int host = 0; host < static_cast<int>(options.hosts.size()); ++host) {
      hosts.push_back(std::make_unique<RemoteHost>(options, host));
    }
  }
  Status started = relay.start();
  if (started.ok()) started = notices.start();
  if (!started.ok()) return give_up(options, started);
  notices.carry_log();
  LaunchedJob job(options, signals.value(), hosts, local == nullptr ? 0 : options.host_index,
                  notices);
  const int status = job.run();
  job.end();
  if (status != 0) hosts.clear();
  relay.finish();
  notices.finish();
  JobOutcome outcome = job.outcome(status);
  if (status == 0) write_own_lines(STDERR_FILENO, report(outcome));
  if (status == 0 && local != nullptr) {
    write_own_lines(STDERR_FILENO, local->linger(signals.value(), outcome, job.time_limit()));
  }
  if (options.json) write_own_lines(STDOUT_FILENO, report_json(outcome));
  return outcome.exit_status();
}

}  // namespace stretto::launch

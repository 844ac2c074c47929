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

// Where there are no ranks yet. Returns the launcher's exit status.
int give_up(const LaunchOptions& options, const Status& why) {
  write_fully(STDERR_FILENO, fmt::format("stretto run: {}\n", why.message()));
  const JobOutcome outcome{.launcher_status = 1};
  if (options.json) write_own_lines(STDOUT_FILENO, report_json(outcome));
  return outcome.exit_status();
}

// Whether a signal asks the launcher to end.
bool asks_to_end(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

// Whether such a signal has come that nobody has taken yet.
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

// A second request to end that comes so soon is the same, told twice: by timeout(1), to the
// launcher and to its group, or by a service manager.
constexpr Duration kSameRequest = std::chrono::milliseconds(100);

// Between the end of a rank and its next start: the others read how it has ended, and a program
// that always fails at once does not use up all restarts in a moment.
constexpr Duration kRestartPause = std::chrono::seconds(1);

// How long ends of ranks may take to come once the output before them is read.
constexpr Duration kUnreadTime = std::chrono::seconds(1);

// Of a host that a remote shell leads to, with those that this process has open itself.
constexpr std::size_t kDescriptorsOfHost = 12;

// The ranks that a launcher looks after: who runs, who has ended and how.
class RankProcesses {
 public:
  // Who it is, and where. In the order of their numbers, which follow each other.
  void add(RankOutcome rank);
  void note_start(int rank, const RankEvent& event);
  const RankOutcome& note_end(int rank, const RankEvent& event);
  // Another process is to take its place, on that host.
  void note_restart(int rank, const Host& host);
  // What the launcher sends to all of them. `told_to_end`: it ends the job by that.
  void note_signal(int signal, bool told_to_end);
  // For the first time.
  bool all_started() const;
  // Whether there is a restart on that host that note_start() has not been told of.
  bool restarting(const Host& host) const;
  bool has_ended(int rank) { return at(rank).stage == Stage::ended; }
  bool all_ended() const;
  // "0, 3": those that have not ended.
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
  // `first_host`: which of the options' hosts the first of `hosts` is. `relay` writes what there is
  // to say.
  LaunchedJob(const LaunchOptions& options, const Signals& signals, const Hosts& hosts,
              int first_host, OutputRelay& relay);

  // An exit status: 0: all ranks have started and ended.
  int run();
  // After that: returns when nothing of the ranks is left, or says what is.
  void end() const;
  // With what run() has returned.
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

  // An exit status, if that is the end.
  std::optional<int> take_events();
  std::optional<int> take(Host& host, int first_rank, const RankEvent& event);
  // Until then there is nothing to do but to answer.
  Deadline next_step() const;
  // The first of restarts_ whose host is not busy with another: each does one after the other, so
  // that an order always finds room.
  std::list<Restart>::const_iterator next_restart() const;
  // The rank whose pause is over.
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
  bool was_unread_ = false;  // At the end of stage killing.
  Stage stage_ = Stage::running;
  Deadline stage_ends_;
  Deadline time_limit_;
  std::list<Restart> restarts_;
  int restart_count_ = 0;  // Those that have been done, too.
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
        // The ranks of that host are dead, or nobody can tell what becomes of them.
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
  // Hosts tell each end once; one that does not has no say in what runs.
  if (processes_.has_ended(first_rank + event.local_rank)) return std::nullopt;
  if (event.kind == RankEvent::Kind::exited && !event.text.empty()) say(event.text);
  const RankOutcome& outcome = processes_.note_end(first_rank + event.local_rank, event);
  // Those of its own host have been told. Once all are told to end, their ends are no news.
  const bool is_news = outcome.failed() && stage_ <= Stage::settling;
  for (const auto& other : hosts_) {
    if (is_news && other.get() != &host) other->tell_obituary(outcome.rank, event.obituary);
  }
  if (event.kind == RankEvent::Kind::lost) restarts_.clear();  // Which ends the job.
  if (!outcome.failed() || stage_ != Stage::running) return std::nullopt;
  if (restart_count_ < options_.restarts && event.kind != RankEvent::Kind::lost) {
    restarts_.push_back(
        {host, outcome.rank, event.local_rank, ++restart_count_, Deadline::after(kRestartPause)});
    say(restart_notice(outcome, restart_count_, options_.restarts));
    return std::nullopt;
  }
  // In which restarts that have been announced are done.
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
  // Ranks that have been told to end keep the time that they have for it.
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

// With a signal that tells the ranks to end, from where on none is started again.
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

// Without them, what is opened next would be taken for them.
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
  OutputRelay notices;  // Of its own thread: stderr may be read where the ranks' output is not.
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
  if (status == 0 && local != nullptr &&
      local->linger(signals.value(), outcome, job.time_limit())) {
    outcome.time_limit_reached = true;
    write_own_lines(STDERR_FILENO,
                    "stretto run: the time limit ends the wait for the other processes of this "
                    "elastic job, and with it the store in which they meet\n");
  }
  if (options.json) write_own_lines(STDOUT_FILENO, report_json(outcome));
  return outcome.exit_status();
}

}  // namespace stretto::launch

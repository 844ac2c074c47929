// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/launcher.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "stretto/bootstrap/join_notes.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/store_server.h"
#include "stretto/bootstrap/tcp_store.h"
#include "stretto/job/status_board.h"
#include "tools/launch/guardian.h"
#include "tools/launch/outcome.h"
#include "tools/launch/output_relay.h"
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

// Whether a signal asks the launcher to end.
bool asks_to_end(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

// A second request to end that comes so soon is the same, told twice: by timeout(1), to the
// launcher and to its group, or by a service manager.
constexpr Duration kSameRequest = std::chrono::milliseconds(100);

// The launcher's part between the first start and the last end.
class Job {
 public:
  Job(const LaunchOptions& options, const Signals& signals, Guardian& guardian,
      const job::StatusBoardReader& board)
      : options_(options), signals_(signals), guardian_(guardian), board_(board) {}

  // Each returns an exit status. 0 of start(): all ranks have been started.
  int start();
  int run();

 private:
  // What happens to the ranks that are left after a failure, one step after the other.
  enum class Stage { running, settling, ending, killing };

  Status prepare();
  int take_started(RankNews news);
  void take_ended(const RankNews& news);
  void tell_joiners(const RankOutcome& outcome);
  // Null if there is none.
  std::unique_ptr<bootstrap::Store> connect_to_store() const;
  void handle(int signal);
  void advance();
  void enter(Stage stage, Deadline until, int signal = 0);
  void linger(const JobOutcome& outcome);

  const LaunchOptions& options_;
  const Signals& signals_;
  Guardian& guardian_;
  const job::StatusBoardReader& board_;
  Rendezvous rendezvous_;
  RankProcesses processes_;
  OutputRelay relay_;
  std::optional<long> kills_before_;
  Stage stage_ = Stage::running;
  Deadline stage_ends_;
  Deadline time_limit_;
  bool time_limit_reached_ = false;
  int ended_by_ = 0;
  TimePoint asked_to_end_at_{};
};

int Job::start() {
  Status status = prepare();
  while (status.ok() && processes_.count() < static_cast<std::size_t>(options_.ranks_per_host)) {
    const std::optional<int> signal = signals_.wait(Deadline(), guardian_.fd());
    if (signal && asks_to_end(*signal)) {
      say("ended by a signal before all ranks had been started");
      return 128 + *signal;
    }
    Result<std::optional<RankNews>> news = guardian_.next();
    status = news.status();
    if (!status.ok() || !news.value()) continue;
    if (const int failure = take_started(std::move(*news.value())); failure != 0) return failure;
  }
  if (status.ok()) status = relay_.start();
  if (status.ok()) return 0;
  say(status.message());
  return 1;
}

Status Job::prepare() {
  Result<Rendezvous> rendezvous = open_rendezvous(options_);
  if (!rendezvous.ok()) return rendezvous.status();
  rendezvous_ = std::move(*rendezvous);
  kills_before_ = out_of_memory_kills();
  if (options_.time_limit > Duration::zero()) {
    stage_ends_ = time_limit_ = Deadline::after(options_.time_limit);
  }
  return guardian_.start_ranks(rendezvous_.address);
}

int Job::take_started(RankNews news) {
  if (news.kind == RankNews::Kind::not_started) {
    say(news.text);
    if (news.number == 0) return 1;
    return news.number == ENOENT ? 127 : 126;
  }
  const int rank = options_.rank_of(news.local_rank);
  processes_.add(rank, news.pid);
  const auto prefix = [&](int fd) {
    return options_.prefix ? rank_prefix(rank, wants_colour(fd)) : std::string();
  };
  relay_.add(std::move(news.output), STDOUT_FILENO, prefix(STDOUT_FILENO));
  relay_.add(std::move(news.errors), STDERR_FILENO, prefix(STDERR_FILENO));
  return 0;
}

int Job::run() {
  while (!processes_.all_ended()) {
    if (const std::optional<int> signal = signals_.wait(stage_ends_, guardian_.fd())) {
      handle(*signal);
      continue;
    }
    const Result<std::optional<RankNews>> news = guardian_.next();
    if (!news.ok()) {
      // The system has killed the ranks.
      processes_.send(SIGKILL);
      say(news.status().message());
      return 1;
    }
    if (news.value()) take_ended(*news.value());
    if (stage_ends_.passed()) advance();
  }
  guardian_.end();
  relay_.finish();
  JobOutcome outcome{.ranks = processes_.outcomes(),
                     .out_of_memory_kills = 0,
                     .time_limit = options_.time_limit,
                     .time_limit_reached = time_limit_reached_,
                     .ended_by = ended_by_};
  if (const auto kills = out_of_memory_kills(); kills && kills_before_) {
    outcome.out_of_memory_kills = *kills - *kills_before_;
  }
  linger(outcome);
  write_fully(STDERR_FILENO, report(outcome));
  if (options_.json) write_fully(STDOUT_FILENO, report_json(outcome));
  return outcome.exit_status();
}

void Job::take_ended(const RankNews& news) {
  const RankOutcome& outcome = processes_.note_end(news, board_);
  tell_joiners(outcome);
  if (outcome.failed() && stage_ == Stage::running) {
    const Deadline settled = Deadline::after(options_.settle_time);
    enter(Stage::settling, settled.time() < time_limit_.time() ? settled : time_limit_);
  }
}

// A rank that has not come to the store yet leaves nothing there that could say that it never will.
// In a program that does not join, nobody reads it.
void Job::tell_joiners(const RankOutcome& outcome) {
  if (stage_ != Stage::running) return;
  const auto store = connect_to_store();
  // Where there is none, the ranks do not reach it either, and say so.
  if (store != nullptr) {
    (void)bootstrap::report_end(*store, outcome.rank, describe_end(outcome)).ok();
  }
}

std::unique_ptr<bootstrap::Store> Job::connect_to_store() const {
  constexpr Duration kConnectTime = std::chrono::seconds(1);
  const Result<bootstrap::HostPort> where = bootstrap::parse_host_port(rendezvous_.address);
  if (!where.ok()) return nullptr;
  auto store = bootstrap::connect_tcp_store(
      {.host = where.value().host, .port = where.value().port, .key = options_.key},
      Deadline::after(kConnectTime));
  return store.ok() ? std::move(*store) : nullptr;
}

// For the ranks of other hosts, who may still be reading; or, if the job has failed while it was
// starting, come a little later, and find in the store why.
void Job::linger(const JobOutcome& outcome) {
  const bool others = options_.size() > options_.ranks_per_host;
  if (rendezvous_.server == nullptr || !others) return;
  constexpr Duration kLookAgain = std::chrono::milliseconds(20);
  constexpr Duration kLatecomersTime = std::chrono::seconds(3);
  const bool failed = outcome.exit_status() != 0;
  if (failed) {
    const auto store = connect_to_store();
    if (store == nullptr) return;
    const Result<bool> joined = bootstrap::have_all_joined(*store, options_.size());
    if (!joined.ok() || joined.value()) return;
  }
  const Deadline deadline = Deadline::after(failed ? kLatecomersTime : options_.linger_time);
  while ((failed || rendezvous_.server->client_count() > 0) && !deadline.passed()) {
    // Somebody who wants the launcher to end shall not have to wait for other hosts.
    if (signals_.wait(Deadline::after(kLookAgain))) return;
  }
}

void Job::handle(int signal) {
  if (!asks_to_end(signal)) return processes_.send(signal);
  if (Clock::now() - asked_to_end_at_ < kSameRequest) return;
  asked_to_end_at_ = Clock::now();
  if (ended_by_ == 0) ended_by_ = signal;
  if (stage_ >= Stage::ending) return enter(Stage::killing, Deadline(), SIGKILL);
  enter(Stage::ending, Deadline::after(options_.grace_time), signal);
}

void Job::advance() {
  if (stage_ <= Stage::settling && time_limit_.passed()) time_limit_reached_ = true;
  if (stage_ == Stage::ending) {
    enter(Stage::killing, Deadline(), SIGKILL);
  } else {
    enter(Stage::ending, Deadline::after(options_.grace_time), SIGTERM);
  }
}

// With a signal that tells the ranks to end.
void Job::enter(Stage stage, Deadline until, int signal) {
  stage_ = stage;
  stage_ends_ = until;
  if (signal != 0) processes_.tell_to_end(signal);
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
  const auto board =
      job::StatusBoardReader::create(static_cast<std::size_t>(options.ranks_per_host));
  for (const Status& status : {signals.status(), board.status()}) {
    if (status.ok()) continue;
    say(status.message());
    return 1;
  }
  Result<Guardian> guardian = Guardian::start(options, board.value().fd());
  if (!guardian.ok()) {
    say(guardian.status().message());
    return 1;
  }
  Job job(options, signals.value(), *guardian, board.value());
  if (const int status = job.start(); status != 0) return status;
  return job.run();
}

}  // namespace stretto::launch

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/local_host.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include <fmt/format.h>

#include "stretto/base/descriptor_limit.h"
#include "stretto/bootstrap/join_notes.h"
#include "stretto/bootstrap/own_address.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/bootstrap/store_server.h"
#include "stretto/bootstrap/tcp_store.h"
#include "stretto/job/membership.h"
#include "tools/launch/rank_environment.h"

namespace stretto::launch {
namespace {

// How long to wait for the name of this host: as long as ranks by default wait for each other.
constexpr Duration kNameTime = std::chrono::seconds(300);
// Descriptors for this process's own files, and for connections that are just being made.
constexpr std::size_t kOwnDescriptors = 64;
constexpr Duration kStorePause = std::chrono::seconds(5);

// Reserves a port of 127.0.0.1: the system gives it to nobody else, but a process that is told the
// port can listen there, as two such sockets may share a port if at most one of them listens.
FileDescriptor reserve_port() {
  FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  (void)::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  return fd;
}

// Returns where the ranks meet. Launcher 0 serves there; the others only know the address.
Result<bootstrap::HostPort> meeting_place(const LaunchOptions& options) {
  if (!options.rendezvous.empty()) return bootstrap::parse_host_port(options.rendezvous);
  if (meets_at_any_port(options)) return bootstrap::HostPort{"127.0.0.1", 0};
  const std::string& name = options.hosts.front().name;  // Or "user@name".
  return bootstrap::HostPort{name.substr(name.find('@') + 1), kDefaultPort};
}

}  // namespace

LocalHost::LocalHost(const LaunchOptions& options, OutputRelay& relay,
                     WaitLimit::Interruption told_to_end, job::LauncherBoard board,
                     Guardian guardian)
    : options_(options),
      relay_(relay),
      told_to_end_(std::move(told_to_end)),
      board_(std::move(board)),
      guardian_(std::move(guardian)) {}

LocalHost::~LocalHost() = default;

Result<std::unique_ptr<LocalHost>> LocalHost::create(const LaunchOptions& options,
                                                     OutputRelay& relay,
                                                     WaitLimit::Interruption told_to_end) {
  job::LauncherBoard board(options.local_size(), options.size());
  const int own_ranks = options.starter.empty() ? options.local_size() : 0;
  for (int i = 0; i < own_ranks; ++i) board.promise_obituary(options.rank_of(i));
  STRETTO_ASSIGN_OR_RETURN(Guardian guardian, Guardian::start(options, board.fd()));
  return std::unique_ptr<LocalHost>(
      new LocalHost(options, relay, std::move(told_to_end), std::move(board), std::move(guardian)));
}

Status LocalHost::start() {
  STRETTO_ASSIGN_OR_RETURN(bootstrap::HostPort where, meeting_place(options_));
  const auto pipes = 2 * static_cast<std::size_t>(options_.local_size());
  // All ranks connect to the store to join and to watch it; those of an elastic job stay while it
  // runs.
  const auto clients =
      options_.host_index == 0 ? 4 * static_cast<std::size_t>(options_.size()) : std::size_t{0};
  allow_descriptors(pipes + clients + kOwnDescriptors);
  if (options_.host_index == 0) {
    WaitLimit limit(Deadline::after(kNameTime), told_to_end_);
    if (options_.time_limit > Duration::zero()) limit = limit.within(options_.time_limit);
    STRETTO_ASSIGN_OR_RETURN(const auto host,
                             bootstrap::address_to_bind(where.host, where.port, limit));
    auto server =
        bootstrap::StoreServer::start({.host = host, .port = where.port, .key = options_.key});
    if (!server.ok()) {
      return status_of(server.status().code(),
                       "{}; --rendezvous HOST:PORT names another place for the ranks to meet",
                       server.status().message());
    }
    server_ = std::move(*server);
    where.port = server_->port();
  }
  rendezvous_ = bootstrap::format_host_port(where.host, where.port);
  if (meets_at_any_port(options_)) reserved_ = reserve_port();
  const Result<int> free_port = bootstrap::local_port(reserved_.get());
  return guardian_.start_ranks(
      rendezvous_, master_place(options_, where, free_port.ok() ? free_port.value() : 0));
}

Result<std::optional<RankEvent>> LocalHost::next() {
  Result<std::optional<RankEvent>> event = guardian_.next();
  if (!event.ok() || !event.value()) return event;
  RankEvent& found = **event;
  if (found.kind == RankEvent::Kind::started) {
    take_started(found);
  } else if (found.kind != RankEvent::Kind::not_started) {
    note_end(found);
  }
  return event;
}

void LocalHost::take_started(RankEvent& event) {
  const bool is_restart = event.local_rank < static_cast<int>(pids_.size());
  if (!is_restart) pids_.push_back(0);
  pids_[static_cast<std::size_t>(event.local_rank)] = event.pid;
  // Sends the rank the signals that came while it was being started, except those that programs
  // handle themselves, which would kill a program that has not yet installed its handler.
  for (std::size_t i = signals_before_start_; i < signals_sent_.size(); ++i) {
    if (!is_for_programs(signals_sent_[i])) ::kill(-event.pid, signals_sent_[i]);
  }
  const int rank = options_.rank_of(event.local_rank);
  const auto prefix = [&](int fd) {
    return options_.prefix ? rank_prefix(rank, wants_colour(fd)) : std::string();
  };
  relay_.add(std::move(event.output), STDOUT_FILENO, prefix(STDOUT_FILENO));
  relay_.add(std::move(event.errors), STDERR_FILENO, prefix(STDERR_FILENO));
}

void LocalHost::promise_obituaries_of_all() {
  for (int rank = 0; rank < options_.size(); ++rank) board_.promise_obituary(rank);
}

// Tells the remaining ranks, which wait for this obituary.
void LocalHost::note_end(RankEvent& event) {
  event.note = board_.read(event.local_rank);
  const int rank = options_.rank_of(event.local_rank);
  RankOutcome outcome{.rank = rank, .signals_sent = signals_sent_};
  outcome.note_end(event);
  const std::optional<long> kills = out_of_memory_kills();
  if (kills && kills_) unexplained_kills_ += *kills - *kills_;
  kills_ = kills;
  event.obituary = obituary_of(outcome, kills ? std::optional(unexplained_kills_) : std::nullopt);
  if (outcome.signal == SIGKILL && unexplained_kills_ > 0) --unexplained_kills_;
  tell_obituary(rank, event.obituary);
  tell_joiners(outcome);
}

// Tells ranks that still join how a rank has ended, by a note in the store: a rank that never came
// to the store leaves none itself. In a program that does not join, nobody reads it.
void LocalHost::tell_joiners(const RankOutcome& outcome) {
  if (ending_) return;
  ending_ = outcome.failed();
  // It takes a second to find out that there is no store, and once all have joined there may be
  // none for good. So after ranks that ended well this does not look for it each time.
  if (!outcome.failed() && Clock::now() < look_for_store_) return;
  const auto store = connect_to_store();
  if (store == nullptr) look_for_store_ = Clock::now() + kStorePause;
  // Without a store the joining ranks fail to reach it, and say so.
  if (store == nullptr) return;
  (void)bootstrap::report_end(*store, outcome.rank, describe_end(outcome)).ok();
}

std::unique_ptr<bootstrap::Store> LocalHost::connect_to_store() const {
  constexpr Duration kConnectTime = std::chrono::seconds(1);
  const Result<bootstrap::HostPort> where = bootstrap::parse_host_port(rendezvous_);
  if (!where.ok()) return nullptr;
  auto store = bootstrap::connect_tcp_store(
      {.host = where.value().host, .port = where.value().port, .key = options_.key},
      Deadline::after(kConnectTime));
  return store.ok() ? std::move(*store) : nullptr;
}

void LocalHost::restart(int local_rank, int number) {
  if (local_rank < 0 || local_rank >= static_cast<int>(pids_.size())) return;
  board_.clear(local_rank);
  board_.promise_obituary(options_.rank_of(local_rank));
  // The guardian reaps the process with this number.
  pids_[static_cast<std::size_t>(local_rank)] = 0;
  signals_before_start_ = signals_sent_.size();
  guardian_.restart(local_rank, number);
}

// The guardian keeps ended ranks as zombies, so that no other process gets one of these numbers.
void LocalHost::send(int signal) {
  ending_ = ending_ || !is_for_programs(signal);
  signals_sent_.push_back(signal);
  for (const pid_t pid : pids_) {
    if (pid > 0) ::kill(-pid, signal);
  }
}

void LocalHost::give_up() {
  guardian_.give_up();
  server_.reset();  // These ranks are among its clients.
}

bool LocalHost::serves_elastic_job() const {
  if (server_->will_count() == 0) return false;
  const auto store = connect_to_store();
  if (store == nullptr) return false;
  const std::array key = {
      fmt::format("{}{}", job::Membership::kStorePrefix, job::Membership::kEntered)};
  const Result<bool> entered = store->check(key, Deadline::after(std::chrono::seconds(1)));
  return entered.ok() && entered.value();
}

std::string LocalHost::linger(const Signals& signals, JobOutcome& outcome, Deadline time_limit) {
  if (server_ == nullptr) return {};
  constexpr Duration kLookAgain = std::chrono::milliseconds(20);
  constexpr Duration kLatecomersTime = std::chrono::seconds(3);
  // For ranks of other hosts that still read where their peers are, after a success.
  constexpr Duration kReadersTime = std::chrono::seconds(30);
  constexpr Duration kSilence = std::chrono::seconds(5);
  const auto signal_to_end = [&] {  // 0: none has come.
    const std::optional<int> signal = signals.wait(Deadline::after(kLookAgain), {});
    return signal && !is_for_programs(*signal) ? *signal : 0;
  };
  const auto end_of_wait = [](std::string_view cause) {
    return fmt::format(
        "stretto run: {} ends the wait for the other processes of this elastic job, and with it "
        "the store in which they meet\n",
        cause);
  };
  const bool was_ended = outcome.ended_by != 0 || outcome.time_limit_reached;
  if (!was_ended && serves_elastic_job()) {
    const Deadline notice = Deadline::after(kSilence);
    bool is_noticed = false;
    while (server_->will_count() > 0) {
      outcome.time_limit_reached = time_limit.passed();
      if (outcome.time_limit_reached) return end_of_wait("the time limit");
      outcome.ended_by = signal_to_end();
      if (outcome.ended_by != 0) return end_of_wait(signal_name(outcome.ended_by));
      if (is_noticed || !notice.passed()) continue;
      is_noticed = true;
      write_fully(
          STDERR_FILENO,
          "stretto run: waiting for the processes of this elastic job on other hosts, "
          "which meet in the store of this launcher; a signal ends the wait, and the job\n");
    }
    return {};
  }
  const bool failed = outcome.exit_status() != 0;
  if (failed && options_.hosts.size() == 1) return {};
  if (failed) {
    const auto store = connect_to_store();
    if (store == nullptr) return {};
    const Result<bool> joined = bootstrap::have_all_joined(*store, options_.size());
    if (!joined.ok() || joined.value()) return {};
  }
  const Deadline deadline = Deadline::after(failed ? kLatecomersTime : kReadersTime);
  while ((failed || server_->client_count() > 0) && !deadline.passed()) {
    // A request to end the launcher must not wait for other hosts.
    if (signal_to_end() != 0) return {};
  }
  return {};
}

}  // namespace stretto::launch

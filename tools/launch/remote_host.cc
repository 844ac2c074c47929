// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/remote_host.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/launch/child.h"
#include "tools/launch/messages.h"
#include "tools/launch/rank_environment.h"
#include "tools/launch/signals.h"

namespace stretto::launch {
namespace {

// The exit code of an ssh that could not connect or has lost the connection.
constexpr int kShellFailed = 255;
constexpr int kOrderBytes = 1 << 20;
constexpr int kPauseSeconds = 1;
// How long a remote shell may take to end once the process that it runs has ended.
constexpr Duration kShellEndTime = std::chrono::seconds(3);

Result<std::string> own_program() {
  std::error_code error;
  const std::string path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error && path.find('\'') == std::string::npos) return path;
  return status_of(StatusCode::system, "cannot tell other hosts where this program is: {}",
                   error ? error.message() : path);
}

}  // namespace

RemoteHost::RemoteHost(const LaunchOptions& options, int host_index)
    : options_(options),
      host_index_(host_index),
      reach_until_(Deadline::after(options.host_wait)),
      ended_(static_cast<std::size_t>(options.hosts[static_cast<std::size_t>(host_index)].ranks)) {}

std::string RemoteHost::name() const {
  return options_.hosts[static_cast<std::size_t>(host_index_)].name;
}

Status RemoteHost::start() {
  STRETTO_ASSIGN_OR_RETURN(const bootstrap::JobKey random, bootstrap::JobKey::generate());
  // The marker begins with a control character, so that no unfinished text is taken for its
  // beginning.
  marker_ = "\x1estretto-" + random.hexadecimal().substr(0, 32) + " ";
  STRETTO_ASSIGN_OR_RETURN(const std::string program, own_program());
  STRETTO_ASSIGN_OR_RETURN(FileDescriptor orders, make_orders());
  STRETTO_ASSIGN_OR_RETURN(Pipe events, make_pipe());
  events_ = std::move(events.reading);
  ::fcntl(events_.get(), F_SETFL, O_NONBLOCK);
  STRETTO_RETURN_IF_ERROR(write_order());

  ChildOptions shell{.command = options_.remote_shell,
                     .environment = inherited_environment(),
                     .input = orders.get(),
                     // A shell that asks something at the terminal would be stopped, because it
                     // does not run in the foreground. Without a terminal it fails, and says why.
                     .own_session = true};
  shell.command.push_back(name());
  shell.command.push_back(fmt::format("exec '{}' run --agent", program));
  int error_number = 0;
  STRETTO_ASSIGN_OR_RETURN(Child child, start_child(shell, error_number));
  shell_ = child.pid;
  output_relay_ = std::make_unique<OutputRelay>();
  output_relay_->add(std::move(child.output), STDOUT_FILENO, "");
  events_relay_ = std::make_unique<OutputRelay>();
  events_relay_->add_marked(std::move(child.errors), STDERR_FILENO, marker_,
                            std::move(events.writing));
  for (OutputRelay* relay : {output_relay_.get(), events_relay_.get()}) {
    // Other processes may keep its output open, such as a shared connection that outlives it.
    STRETTO_RETURN_IF_ERROR(
        relay->start(FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, shell_, 0)))));
  }
  return {};
}

// The order is written before anybody reads it. A pipe may hold only a page if this user has many
// pipes; a socket holds some hundred KiB.
Result<FileDescriptor> RemoteHost::make_orders() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return system_status("socketpair");
  }
  orders_ = FileDescriptor(ends[0]);
  (void)::setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &kOrderBytes, sizeof(kOrderBytes));
  return FileDescriptor(ends[1]);
}

// Returns false if the socket has no room for the whole line; never waits. Only the first line is
// long: a socket takes a line of a few KiB as a whole or not at all.
bool RemoteHost::write_line(std::string_view line) const {
  while (!line.empty()) {
    const ssize_t count =
        ::send(orders_.get(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno != EINTR) return false;
    line.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  }
  return true;
}

Status RemoteHost::write_order() const {
  Order order{.options = options_, .marker = marker_};
  order.options.host_index = host_index_;
  std::error_code error;
  order.directory = std::filesystem::current_path(error);
  if (error) return status_of(StatusCode::system, "the current directory: {}", error.message());
  for (std::string& variable : inherited_environment()) {
    if (!is_of_this_host(variable)) order.environment.push_back(std::move(variable));
  }
  const std::string line = format_order(order);
  if (write_line(line)) return {};
  return status_of(StatusCode::invalid_argument,
                   "the program's arguments and the environment, {} bytes, are too long for "
                   "another host; more have room with a larger sysctl net.core.wmem_max",
                   line.size());
}

Result<std::optional<RankEvent>> RemoteHost::next() {
  std::uint64_t expirations = 0;
  if (pause_.valid()) {
    if (::read(pause_.get(), &expirations, sizeof(expirations)) < 0) {
      return std::optional<RankEvent>();
    }
    pause_.reset();
    if (!ending_) STRETTO_RETURN_IF_ERROR(start());
  }
  bool drained = false;
  while (true) {
    if (const auto line = lines_.next()) {
      if (line->empty()) continue;  // A sign of life.
      STRETTO_ASSIGN_OR_RETURN(RankEvent event, parse_event(*line));
      const auto rank = static_cast<std::size_t>(event.local_rank);
      if (rank >= ended_.size()) continue;
      heard_ = true;
      ended_[rank] = event.kind != RankEvent::Kind::started;
      if (!event.text.empty()) event.text = name() + ": " + event.text;
      return std::optional<RankEvent>(std::move(event));
    }
    if (drained || pause_.valid()) return std::optional<RankEvent>();
    if (!events_.valid()) return next_lost();
    drained = lines_.fill(events_.get());
    if (!drained) STRETTO_RETURN_IF_ERROR(after_shell());
  }
}

// Called when the agent's events have ended: the agent has ended or will soon, or the shell has. If
// the host could not be reached, starts the pause before the next attempt.
Status RemoteHost::after_shell() {
  wait_for_shell();
  events_.reset();
  if (heard_ || ending_ || shell_status_ != kShellFailed || reach_until_.passed()) return {};
  pause_ = FileDescriptor(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  const itimerspec once{.it_interval = {}, .it_value = {.tv_sec = kPauseSeconds, .tv_nsec = 0}};
  if (!pause_.valid() || ::timerfd_settime(pause_.get(), 0, &once, nullptr) != 0) {
    return system_status("timerfd");
  }
  return {};
}

std::optional<RankEvent> RemoteHost::next_lost() {
  const auto rank = std::find(ended_.begin(), ended_.end(), false);
  if (rank == ended_.end()) return std::nullopt;
  *rank = true;
  const std::string why = fmt::format("{}, as \"{} {}\" ended with exit code {}",
                                      heard_ ? "lost with its host" : "not started",
                                      fmt::join(options_.remote_shell, " "), name(), shell_status_);
  return RankEvent{.kind = RankEvent::Kind::lost,
                   .local_rank = static_cast<int>(rank - ended_.begin()),
                   .text = why,
                   .obituary = why};
}

void RemoteHost::restart(int local_rank, int number) {
  // If the host is lost before the rank has started, the rank is lost with it.
  ended_[static_cast<std::size_t>(local_rank)] = false;
  (void)write_line(format_restart({.local_rank = local_rank, .number = number}));
}

void RemoteHost::send(int signal) {
  if (heard_) {
    (void)write_line(fmt::format("{}\n", signal));
  } else if (!is_for_programs(signal)) {
    ending_ = true;
    if (shell_ > 0) ::kill(-shell_, signal == SIGKILL ? SIGKILL : SIGTERM);
  }
}

void RemoteHost::tell_obituary(int rank, const std::string& how) {
  if (heard_) (void)write_line(format_obituary({.rank = rank, .how = how}));
}

void RemoteHost::give_up() {
  if (!all_ended() && shell_ > 0) ::kill(-shell_, SIGKILL);
}

bool RemoteHost::waits_for_reader() const { return !all_ended() && is_writing(); }

bool RemoteHost::all_ended() const {
  return std::find(ended_.begin(), ended_.end(), false) == ended_.end();
}

bool RemoteHost::is_writing() const {
  return (output_relay_ != nullptr && output_relay_->is_writing()) ||
         (events_relay_ != nullptr && events_relay_->is_writing());
}

void RemoteHost::tell_to_end() {
  if (!orders_.valid()) return;
  if (!heard_) send(SIGTERM);
  // The agent ends when its standard input does.
  orders_.reset();
  // A stopped shell could not end.
  if (shell_ > 0) ::kill(-shell_, SIGCONT);
}

Status RemoteHost::end() {
  Status status;
  tell_to_end();
  // The agent may wait as long for its ranks as the guardian does.
  const Duration time = heard_ ? kKillTime + kShellEndTime : kShellEndTime;
  while (shell_ > 0 && !ends_within(shell_, time)) {
    if (heard_ && is_writing()) continue;  // Its output waits to be read.
    ::kill(-shell_, SIGKILL);
    if (heard_) {
      status = status_of(StatusCode::system,
                         "\"{} {}\" has not ended with the ranks of that host, and was killed",
                         fmt::join(options_.remote_shell, " "), name());
    }
    break;
  }
  wait_for_shell();
  // Nobody reads the events any more, and the relay must not wait for a reader.
  events_.reset();
  if (output_relay_ != nullptr) output_relay_->finish();
  if (events_relay_ != nullptr) events_relay_->finish();
  return status;
}

void RemoteHost::wait_for_shell() {
  int raw = 0;
  while (shell_ > 0 && ::waitpid(shell_, &raw, 0) < 0 && errno == EINTR) {
  }
  if (shell_ > 0) shell_status_ = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  shell_ = -1;
}

}  // namespace stretto::launch

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/guardian.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/cores.h"
#include "stretto/base/parse_number.h"
#include "stretto/base/poll.h"
#include "stretto/base/would_block.h"
#include "tools/launch/child.h"
#include "tools/launch/rank_environment.h"

namespace stretto::launch {
namespace {

// The fixed part of a message to the launcher; the text follows.
struct Header {
  RankEvent::Kind kind;
  std::int32_t local_rank;
  std::int32_t pid;
  std::int32_t number;
  TimePoint at;
};

// Tells the guardian to restart a rank, once all ranks have been started.
struct RestartMessage {
  std::int32_t local_rank;
  std::int32_t number;
};

constexpr std::size_t kMaxTextBytes = 4096;
constexpr char kBetweenPlaces = ' ';
// How soon orphans of the ranks are reaped once they have ended.
constexpr Duration kReapTime = std::chrono::seconds(1);

// Reads the parent from /proc/PID/stat: "4711 (any name) S 4710 ...". -1 if the process has ended.
pid_t parent_of(pid_t pid) {
  const FileDescriptor file(
      ::open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 256> bytes;
  const ssize_t count = ::read(file.get(), bytes.data(), bytes.size());
  std::string_view text(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos || name_end + 4 >= text.size()) return -1;
  text.remove_prefix(name_end + 4);
  return take_number<pid_t>(text).value_or(-1);
}

// Searches /proc, because not every kernel has the list in /proc/PID/task/TID/children.
std::vector<pid_t> children() {
  std::vector<pid_t> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  if (folder == nullptr) return found;
  while (const dirent* entry = ::readdir(folder.get())) {
    const pid_t pid = parse_number<pid_t>(entry->d_name).value_or(0);
    if (pid > 0 && parent_of(pid) == ::getpid()) found.push_back(pid);
  }
  return found;
}

// Kills all descendants, and those that they start meanwhile: orphans become children of this
// process, which is a subreaper, whichever group or session they are in. Returns when none is left
// that this process may kill; processes with another user's rights remain.
void kill_descendants() {
  // Killing a child makes its children ours, so this looks again while there are children. The
  // number of attempts is limited because some may not be killed or are not visible.
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    bool killed = false;
    for (const pid_t child : children()) killed = ::kill(child, SIGKILL) == 0 || killed;
    pid_t reaped = ::waitpid(-1, nullptr, killed ? 0 : WNOHANG);
    if (reaped < 0 && errno == ECHILD) return;
    if (killed) attempt = 0;
    while (reaped > 0) reaped = ::waitpid(-1, nullptr, WNOHANG);
    if (!killed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Kills and reaps what an ended rank has left in its process group, and the rank itself, which is a
// zombie until then. Only after this may another group get its number. Gives up after kEndTime,
// because a driver that hangs may keep a process from ending.
void end_group(pid_t leader) {
  constexpr Duration kEndTime = std::chrono::seconds(1);
  const Deadline deadline = Deadline::after(kEndTime);
  ::kill(-leader, SIGKILL);
  while (true) {
    const pid_t reaped = ::waitpid(-leader, nullptr, WNOHANG);
    if (reaped < 0 || deadline.passed()) return;
    if (reaped == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Reaps the children that have ended, except `kept`.
void reap_children_except(const std::vector<pid_t>& kept) {
  for (const pid_t child : children()) {
    const bool reap = std::find(kept.begin(), kept.end(), child) == kept.end();
    if (reap) ::waitpid(child, nullptr, WNOHANG);
  }
}

// The guardian's own process.
class Guard {
 public:
  Guard(const LaunchOptions& options, int status_fd, int socket)
      : options_(options), status_fd_(status_fd), socket_(socket) {}

  void run();

 private:
  struct Rank {
    pid_t pid = 0;  // 0: not started.
    bool running = false;
  };

  void set_up() const;
  bool start_ranks();
  // Reports the start to the launcher, or returns why the rank could not be started.
  std::optional<RankEvent> start_rank(int local_rank);
  void watch();
  // Reads and obeys a message of the launcher. False if the launcher has ended.
  bool follow_order();
  void tell_ended();
  bool launcher_gone() const;
  void tell(const RankEvent& event) const;

  const LaunchOptions& options_;
  const int status_fd_;
  const int socket_;
  FileDescriptor children_;  // A signalfd.
  RankSettings settings_ = {};
  std::vector<Rank> ranks_;
};

void Guard::run() {
  set_up();
  sigset_t child_ended;
  ::sigemptyset(&child_ended);
  ::sigaddset(&child_ended, SIGCHLD);
  children_ = FileDescriptor(::signalfd(-1, &child_ended, SFD_CLOEXEC | SFD_NONBLOCK));
  if (children_.valid() && start_ranks()) watch();
  for (const Rank& rank : ranks_) {
    if (rank.pid > 0) ::kill(-rank.pid, SIGKILL);
  }
  kill_descendants();
}

void Guard::set_up() const {
  // Signals to the launcher's process group (an interrupt at a terminal, a kill) are not meant for
  // the guardian.
  ::setpgid(0, 0);
  ::prctl(PR_SET_NAME, "stretto-guard");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  // The launcher's output must end for its reader when the launcher ends.
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, fd);
  const auto [low, high] = std::minmax(status_fd_, socket_);
  const auto close_between = [](int first, int last) {
    if (first <= last) {
      ::close_range(static_cast<unsigned>(first), static_cast<unsigned>(last), 0);
    }
  };
  close_between(STDERR_FILENO + 1, low - 1);
  // Without a status board `low` is -1.
  close_between(std::max(low, STDERR_FILENO) + 1, high - 1);
  ::close_range(static_cast<unsigned>(high) + 1, ~0U, 0);
}

bool Guard::start_ranks() {
  std::array<char, kMaxTextBytes> bytes;
  const ssize_t count = ::recv(socket_, bytes.data(), bytes.size(), 0);
  if (count <= 0) return false;
  const std::string_view places(bytes.data(), static_cast<std::size_t>(count));
  const std::size_t space = places.find(kBetweenPlaces);
  settings_ = {.rendezvous = std::string(places.substr(0, space)),
               .master = std::string(places.substr(space + 1)),
               .status_fd = status_fd_,
               .usable_cores = usable_cores()};
  ranks_.resize(static_cast<std::size_t>(options_.local_size()));
  for (int local_rank = 0; local_rank < options_.local_size(); ++local_rank) {
    if (launcher_gone()) return false;
    if (const auto failure = start_rank(local_rank)) {
      tell(*failure);
      return true;
    }
  }
  return true;
}

std::optional<RankEvent> Guard::start_rank(int local_rank) {
  settings_.local_rank = local_rank;
  int error_number = 0;
  Result<Child> child =
      start_child({.command = options_.command,
                   .environment = rank_environment(options_, settings_, inherited_environment()),
                   .inherited_fd = status_fd_},
                  error_number);
  if (!child.ok()) {
    return RankEvent{.kind = RankEvent::Kind::not_started,
                     .local_rank = local_rank,
                     .number = error_number,
                     .text = std::string(child.status().message())};
  }
  ranks_[static_cast<std::size_t>(local_rank)] = {.pid = child->pid, .running = true};
  tell({.kind = RankEvent::Kind::started,
        .local_rank = local_rank,
        .pid = child->pid,
        .output = std::move(child->output),
        .errors = std::move(child->errors)});
  return std::nullopt;
}

void Guard::watch() {
  // Ranks and orphans may have ended already.
  tell_ended();
  Deadline reap_at = Deadline::after(kReapTime);
  while (true) {
    std::array<pollfd, 2> entries{{{socket_, POLLIN, 0}, {children_.get(), POLLIN, 0}}};
    const int ready =
        ::poll(entries.data(), entries.size(), poll_milliseconds(reap_at.remaining()));
    if (ready < 0) continue;
    if (entries[0].revents != 0 && !follow_order()) return;
    signalfd_siginfo info{};
    while (::read(children_.get(), &info, sizeof(info)) == sizeof(info)) {
    }
    tell_ended();
    // A later end does not postpone it.
    if (ready > 0) reap_at = Deadline(std::min(reap_at.time(), Clock::now() + kReapTime));
    if (!reap_at.passed()) continue;
    std::vector<pid_t> kept;
    for (const Rank& rank : ranks_) kept.push_back(rank.pid);
    reap_children_except(kept);
    reap_at = Deadline();
  }
}

bool Guard::follow_order() {
  RestartMessage order{};
  if (::recv(socket_, &order, sizeof(order), 0) != sizeof(order)) return false;
  Rank& rank = ranks_[static_cast<std::size_t>(order.local_rank)];
  if (const pid_t last = std::exchange(rank, {}).pid; last > 0) end_group(last);
  settings_.restart = order.number;
  if (auto failure = start_rank(order.local_rank)) {
    // The other ranks run on: for them this is a process that has failed, with the exit code that a
    // shell would report.
    failure->kind = RankEvent::Kind::exited;
    failure->number = failure->number == ENOENT ? 127 : 126;
    tell(*failure);
  }
  return true;
}

void Guard::tell_ended() {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    auto& [pid, running] = ranks_[i];
    if (!running) continue;
    siginfo_t info{};
    const int waited = ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
    if (waited != 0 || info.si_pid == 0) continue;
    running = false;
    // Its orphans hold its connections open, and the ranks that it is to meet again would wait for
    // that.
    if (options_.restarts > 0 && info.si_status != 0) ::kill(-pid, SIGKILL);
    const bool exited = info.si_code == CLD_EXITED;
    tell({.kind = exited ? RankEvent::Kind::exited : RankEvent::Kind::killed,
          .local_rank = static_cast<int>(i),
          .pid = pid,
          .number = info.si_status});
  }
}

bool Guard::launcher_gone() const { return is_readable(socket_); }

// Waits while the launcher is too slow to read: the guardian has nothing else to do. If the
// launcher ends meanwhile, the wait ends too.
void Guard::tell(const RankEvent& event) const {
  Header header{event.kind, event.local_rank, event.pid, event.number, event.at};
  std::string text = event.text.substr(0, kMaxTextBytes);
  std::array<iovec, 2> parts{{{&header, sizeof(header)}, {text.data(), text.size()}}};
  std::array<int, 2> pipes{event.output.get(), event.errors.get()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(pipes))> control{};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  if (event.output.valid()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(pipes));
    std::memcpy(CMSG_DATA(rights), pipes.data(), sizeof(pipes));
  }
  (void)::sendmsg(socket_, &message, MSG_NOSIGNAL);
}

// Takes the pipes out of a message. There are none if this process has reached its limit on
// descriptors.
Status take_pipes(msghdr& message, RankEvent& event) {
  const cmsghdr* rights = CMSG_FIRSTHDR(&message);
  std::array<int, 2> pipes{-1, -1};
  const std::size_t bytes = rights == nullptr ? 0 : rights->cmsg_len - CMSG_LEN(0);
  if (bytes > 0) std::memcpy(pipes.data(), CMSG_DATA(rights), std::min(bytes, sizeof(pipes)));
  event.output = FileDescriptor(pipes[0]);
  event.errors = FileDescriptor(pipes[1]);
  if (event.errors.valid()) return {};
  return system_status(fmt::format("taking the output of local rank {}", event.local_rank), EMFILE);
}

}  // namespace

Result<Guardian> Guardian::start(const LaunchOptions& options, int status_fd) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return system_status("socketpair");
  }
  FileDescriptor own(ends[0]);
  FileDescriptor its(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return fork_status("the process that looks after the ranks");
  if (pid == 0) {
    own.reset();
    Guard(options, status_fd, its.get()).run();
    ::_exit(0);
  }
  return Guardian(pid, std::move(own));
}

Status Guardian::start_ranks(const std::string& rendezvous, const std::string& master) const {
  const std::string places = rendezvous + kBetweenPlaces + master;
  if (::send(fd(), places.data(), places.size(), MSG_NOSIGNAL) >= 0) return {};
  return system_status("the process that looks after the ranks");
}

void Guardian::restart(int local_rank, int number) const {
  const RestartMessage order{local_rank, number};
  (void)::send(fd(), &order, sizeof(order), MSG_NOSIGNAL);
}

Result<std::optional<RankEvent>> Guardian::next() const {
  Header header{};
  std::array<char, kMaxTextBytes> text;
  std::array<iovec, 2> parts{{{&header, sizeof(header)}, {text.data(), text.size()}}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t count = ::recvmsg(fd(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (count < 0 && would_block(errno)) return std::optional<RankEvent>();
  if (count < static_cast<ssize_t>(sizeof(header))) {
    return status_of(StatusCode::system,
                     "the process that looks after the ranks (pid {}) has ended before them", pid_);
  }
  RankEvent event{.kind = header.kind,
                  .local_rank = header.local_rank,
                  .pid = header.pid,
                  .number = header.number,
                  .text = {text.data(), static_cast<std::size_t>(count) - sizeof(header)},
                  .at = header.at};
  if (event.kind == RankEvent::Kind::started) STRETTO_RETURN_IF_ERROR(take_pipes(message, event));
  return std::optional<RankEvent>(std::move(event));
}

Status Guardian::end() {
  if (!socket_.valid()) return {};
  socket_.reset();
  if (!ends_within(pid_, kKillTime)) {
    return status_of(StatusCode::system,
                     "the process that looks after the ranks (pid {}) has not ended: something "
                     "that they have started does not end on SIGKILL, as may happen in a driver "
                     "that hangs; it is not waited for any longer",
                     pid_);
  }
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  return {};
}

}  // namespace stretto::launch

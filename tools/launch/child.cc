// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

namespace stretto::launch {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// What the child needs between fork and exec. It is made before the fork: the child may neither
// allocate nor lock, because another thread may have held a lock at the fork.
struct Preparation {
  std::vector<char*> arguments;
  std::vector<char*> environment;
  int inherited_fd;
  int input;
  int output;
  int errors;
  int failure;
  pid_t parent;
  bool own_session;
};

void restore_signals() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) ::sigaction(number, &action, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void become_program(const Preparation& preparation) {
  if (preparation.own_session) {
    ::setsid();
  } else {
    ::setpgid(0, 0);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the prctl() call.
  if (::getppid() != preparation.parent) ::_exit(1);
  restore_signals();
  ::dup2(preparation.input, STDIN_FILENO);
  ::dup2(preparation.output, STDOUT_FILENO);
  ::dup2(preparation.errors, STDERR_FILENO);
  if (preparation.inherited_fd >= 0) ::fcntl(preparation.inherited_fd, F_SETFD, 0);
  ::execvpe(preparation.arguments[0], preparation.arguments.data(), preparation.environment.data());
  const int error_number = errno;
  (void)!::write(preparation.failure, &error_number, sizeof(error_number));
  ::_exit(127);
}

// Waits until the program runs or has failed to start, and returns the errno or 0. The program's
// end of the pipe is closed on exec.
int read_failure(int pipe) {
  int error_number = 0;
  ssize_t count = 0;
  do {
    count = ::read(pipe, &error_number, sizeof(error_number));
  } while (count < 0 && errno == EINTR);
  return count == sizeof(error_number) ? error_number : 0;
}

}  // namespace

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return system_status("pipe");
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

Status fork_status(std::string_view what) {
  const int error_number = errno;
  return status_of(
      StatusCode::system, "cannot start {}: {}{}", what, std::strerror(error_number),
      error_number == EAGAIN ? "; raise `ulimit -u`, or pids.max of the control group" : "");
}

Result<Child> start_child(const ChildOptions& options, int& error_number) {
  Result<Pipe> output = make_pipe();
  Result<Pipe> errors = make_pipe();
  Result<Pipe> started = make_pipe();
  const FileDescriptor input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (const Status& status : {output.status(), errors.status(), started.status()}) {
    STRETTO_RETURN_IF_ERROR(status);
  }
  if (!input.valid()) return system_status("/dev/null");

  const Preparation preparation{.arguments = pointers(options.command),
                                .environment = pointers(options.environment),
                                .inherited_fd = options.inherited_fd,
                                .input = options.input >= 0 ? options.input : input.get(),
                                .output = output->writing.get(),
                                .errors = errors->writing.get(),
                                .failure = started->writing.get(),
                                .parent = ::getpid(),
                                .own_session = options.own_session};
  const pid_t pid = ::fork();
  if (pid < 0) return fork_status('"' + options.command[0] + '"');
  if (pid == 0) become_program(preparation);
  started->writing.reset();
  error_number = read_failure(started->reading.get());
  if (error_number != 0) {
    ::waitpid(pid, nullptr, 0);
    return system_status("cannot start \"" + options.command[0] + "\"", error_number);
  }
  return Child{pid, std::move(output->reading), std::move(errors->reading)};
}

bool ends_within(pid_t child, Duration time) {
  const Deadline deadline = Deadline::after(time);
  while (true) {
    siginfo_t info{};
    const int waited =
        ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT);
    if (waited != 0 || info.si_pid != 0) return true;
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace stretto::launch

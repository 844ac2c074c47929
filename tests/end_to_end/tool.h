// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/file_descriptor.h"
#include "stretto/base/rank_vector.h"
#include "tests/support/files.h"
#include "tests/support/soon.h"

// Starts the built `stretto` program, or another one, and watches it like a user at a terminal.
namespace stretto::testing {

// The path of the built program. It is defined in tool.cc, for which CMake sets it.
extern const char* const kToolPath;
// Whether the plug-in for UCX has been built.
bool has_ucx();

// It is a class of this namespace so that its operator+ is found wherever it is used.
struct Arguments : std::vector<std::string> {
  using vector::vector;
};
using Variables = std::map<std::string, std::string>;

inline Arguments operator+(Arguments first, const Arguments& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// `stretto run` with a script on some ranks.
inline Arguments shell(int ranks, const std::string& script, const Arguments& options = {}) {
  return Arguments{"run", "-n", std::to_string(ranks)} + options +
         Arguments{"--", "sh", "-c", script};
}

// Reads a pipe on a thread of its own, so that the writer never waits.
class Collector {
 public:
  explicit Collector(FileDescriptor pipe)
      : pipe_(std::move(pipe)), thread_([this] { collect(); }) {}
  ~Collector() { (void)finish(); }

  // All output, once the pipe has ended.
  std::string finish() {
    if (thread_.joinable()) thread_.join();
    return text_;
  }
  std::string so_far() {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  bool wait_for(std::string_view wanted) {
    return comes_true([&] { return so_far().find(wanted) != std::string::npos; },
                      Deadline::after(std::chrono::seconds(20)));
  }

 private:
  void collect() {
    std::array<char, 4096> bytes;
    ssize_t count = 0;
    while ((count = ::read(pipe_.get(), bytes.data(), bytes.size())) > 0) {
      const std::lock_guard lock(mutex_);
      text_.append(bytes.data(), static_cast<std::size_t>(count));
    }
  }

  FileDescriptor pipe_;
  std::mutex mutex_;
  std::string text_;
  std::thread thread_;
};

// A pipe that has no room until the test reads it, like one to a pager that shows its first page.
class UnreadPipe {
 public:
  UnreadPipe() {
    EXPECT_EQ(::mkfifo(path_.c_str(), S_IRUSR | S_IWUSR), 0);
    reading_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    writing_ = FileDescriptor(::open(path_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    // A pipe takes this many bytes whole or not at all.
    const std::string dots(PIPE_BUF, '.');
    while (::write(writing_.get(), dots.data(), dots.size()) > 0) {
    }
  }

  // The command that starts a Tool whose streams with these numbers lead to this pipe.
  Arguments before(std::initializer_list<int> streams) const {
    std::string script = "exec \"$@\"";
    for (const int stream : streams) script += " " + std::to_string(stream) + ">" + path_;
    return {"sh", "-c", script, "sh"};
  }
  // Reads the pipe. May be called once, after the program has opened it.
  Collector read() {
    writing_.reset();
    ::fcntl(reading_.get(), F_SETFL, 0);
    return Collector(std::move(reading_));
  }

 private:
  TemporaryFolder folder_;
  std::string path_ = folder_ / "pipe";
  FileDescriptor reading_;
  FileDescriptor writing_;
};

// A running program and its output.
class Process {
 public:
  Process(Arguments command, const Variables& variables) {
    int output[2];
    int errors[2];
    EXPECT_EQ(::pipe2(output, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(errors, O_CLOEXEC), 0);
    std::vector<char*> pointers;
    for (std::string& argument : command) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (pid_ == 0) {
      ::unsetenv("STRETTO_JOB_KEY");
      for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
      ::dup2(output[1], STDOUT_FILENO);
      ::dup2(errors[1], STDERR_FILENO);
      ::execvp(pointers.front(), pointers.data());
      ::_exit(99);
    }
    ::close(output[1]);
    ::close(errors[1]);
    output_.emplace(FileDescriptor(output[0]));
    errors_.emplace(FileDescriptor(errors[0]));
  }
  ~Process() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    (void)status();
  }

  pid_t pid() const { return pid_; }
  // Waits for the end. Returns the exit code, or 128 + signal.
  int status() {
    if (pid_ > 0) {
      int raw = 0;
      ::waitpid(pid_, &raw, 0);
      status_ = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
      pid_ = -1;
    }
    return status_;
  }
  Collector& output() { return *output_; }
  Collector& errors() { return *errors_; }

 private:
  pid_t pid_ = -1;
  int status_ = -1;
  std::optional<Collector> output_;
  std::optional<Collector> errors_;
};

// A running `stretto` program.
class Tool : public Process {
 public:
  // `before`: a program that starts it, with that program's arguments.
  explicit Tool(const Arguments& arguments, const Variables& variables = {}, Arguments before = {})
      : Process(std::move(before) + Arguments{kToolPath} + arguments, variables) {}
};

struct Ended {
  int status;
  std::string output;
  std::string errors;
};

inline Ended end_of(Process& process) {
  const int status = process.status();
  return {status, process.output().finish(), process.errors().finish()};
}

inline Ended run(const Arguments& arguments, const Variables& variables = {}) {
  Tool tool(arguments, variables);
  return end_of(tool);
}

inline std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// The number after `begin` in a line of the output, once it is there. Throws if it does not come in
// 20 s, so that no signal goes to process 0.
inline long number_behind(Process& job, const std::string& begin) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  while (!deadline.passed()) {
    const std::string output = job.output().so_far();
    const std::size_t at = output.find(begin);
    if (at != std::string::npos && output.find('\n', at) != std::string::npos) {
      return std::stol(output.substr(at + begin.size()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  throw std::runtime_error("no \"" + begin + "\" in: " + job.output().so_far() +
                           job.errors().so_far());
}

// The same for a rank's line, such as "[1] ready 4711".
inline long number_behind(Tool& job, int rank, const std::string& word) {
  return number_behind(job, "[" + std::to_string(rank) + "] " + word + " ");
}

// The processes of a job's ranks, once each has printed "ready PID".
inline RankVector<pid_t> ready_ranks(Tool& job, int ranks) {
  RankVector<pid_t> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    pids.push_back(static_cast<pid_t>(number_behind(job, rank, "ready")));
  }
  return pids;
}

// For mpirun. Open MPI refuses to run as root and to start more ranks than there are cores, and its
// idle ranks would keep the others from the cores. MPICH ignores these variables.
inline Variables mpirun_variables(const TemporaryFolder& folder) {
  return {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
          {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
          {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
          {"OMPI_MCA_mpi_yield_when_idle", "1"},
          {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
          {"TMPDIR", folder.path()}};
}

// The state of a process as in proc(5): "R", "S", "T", ...; empty if there is no such process.
inline std::string state_of(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string number;
  std::string name;
  std::string state;
  stat >> number >> name >> state;
  return state;
}

// A zombie that nobody reaps counts as ended.
inline bool runs(pid_t pid) {
  const std::string state = state_of(pid);
  return !state.empty() && state != "Z" && state != "X";
}

inline bool ends_soon(pid_t pid) {
  return comes_true([pid] { return !runs(pid); }, Deadline::after(std::chrono::seconds(5)));
}

}  // namespace stretto::testing

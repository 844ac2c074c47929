// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/output_relay.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <iterator>

#include <fmt/format.h>

#include "stretto/base/log_sink.h"
#include "stretto/base/would_block.h"

namespace stretto::launch {
namespace {

// What a pipe can hold at most, unless somebody with privileges has changed it.
constexpr std::size_t kLargestPipe = std::size_t{1} << 20;
constexpr std::size_t kPiece = 64 * 1024;

// Relays of several hosts write to the same output. Standard error has a mutex of its own where it
// leads to another file than standard output: there it does not have to wait until that is read.
std::mutex output_mutex;
std::mutex errors_mutex;
// Whether the last line on standard output has not ended. Guarded by output_mutex.
bool line_open = false;

bool are_same_file(int one, int other) {
  struct stat first {};
  struct stat second {};
  return ::fstat(one, &first) == 0 && ::fstat(other, &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

std::mutex& mutex_of(int target) {
  static const bool differ = !are_same_file(STDOUT_FILENO, STDERR_FILENO);
  return differ && target == STDERR_FILENO ? errors_mutex : output_mutex;
}

}  // namespace

void LinePrefixer::add(std::string_view bytes, std::string& output) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    if (end == std::string_view::npos) {
      partial_ += bytes;
      if (partial_.size() >= kLongestLine) finish(output);
      return;
    }
    output.append(prefix_).append(partial_).append(bytes.substr(0, end + 1));
    partial_.clear();
    bytes.remove_prefix(end + 1);
  }
}

void LinePrefixer::finish(std::string& output) {
  if (partial_.empty()) return;
  output.append(prefix_).append(partial_);
  // Without prefixes, what comes out is what went in.
  if (!prefix_.empty()) output.append("\n");
  partial_.clear();
}

void MarkedLines::add(std::string_view bytes, std::string& output, std::string& marked) {
  partial_ += bytes;
  std::size_t begin = partial_.find(marker_);
  while (begin != std::string::npos) {
    const std::size_t end = partial_.find('\n', begin);
    if (end == std::string::npos) return;
    output.append(partial_, 0, begin);
    begin += marker_.size();
    marked.append(partial_, begin, end + 1 - begin);
    partial_.erase(0, end + 1);
    begin = partial_.find(marker_);
  }
  // The last bytes may be the beginning of a marker.
  const bool too_long = partial_.size() >= LinePrefixer::kLongestLine + marker_.size();
  const std::size_t known = too_long ? partial_.size() - marker_.size() : partial_.rfind('\n') + 1;
  output.append(partial_, 0, known);
  partial_.erase(0, known);
}

std::string rank_prefix(int rank, bool coloured) {
  if (!coloured) return fmt::format("[{}] ", rank);
  // Six colours that are legible on light and dark backgrounds: 31 (red) to 36 (cyan).
  return fmt::format("\x1b[{}m[{}]\x1b[0m ", 31 + rank % 6, rank);
}

bool wants_colour(int fd) {
  const char* terminal = std::getenv("TERM");
  return ::isatty(fd) == 1 && std::getenv("NO_COLOR") == nullptr && terminal != nullptr &&
         std::string_view(terminal) != "dumb";
}

void OutputRelay::add(FileDescriptor source, int target, std::string prefix) {
  add({std::move(source), target, LinePrefixer(std::move(prefix))});
}

void OutputRelay::add_marked(FileDescriptor source, int target, std::string marker,
                             FileDescriptor marked) {
  add({.source = std::move(source),
       .target = target,
       .lines = LinePrefixer({}),
       .marked_lines = MarkedLines(std::move(marker)),
       .marked = std::move(marked)});
}

void OutputRelay::add(Pipe pipe) {
  {
    const std::lock_guard lock(mutex_);
    added_.push_back(std::move(pipe));
  }
  wake();
}

void OutputRelay::wake() const {
  if (wake_.valid()) ::eventfd_write(wake_.get(), 1);
}

void OutputRelay::say(std::string_view line) {
  {
    const std::lock_guard lock(mutex_);
    if (said_.size() < kLargestPipe) said_ += line;
  }
  wake();
}

void OutputRelay::carry_log() {
  carries_log_ = true;
  set_log_sink([this](LogLevel, std::string_view line) { say(fmt::format("{}\n", line)); });
}

void OutputRelay::take_added() {
  eventfd_t count = 0;
  ::eventfd_read(wake_.get(), &count);
  std::erase_if(pipes_, [](const Pipe& pipe) { return !pipe.source.valid(); });
  const std::lock_guard lock(mutex_);
  std::move(added_.begin(), added_.end(), std::back_inserter(pipes_));
  added_.clear();
}

Status OutputRelay::start(FileDescriptor writer) {
  writer_ = std::move(writer);
  // As if woken: there are those that were added before.
  wake_ = FileDescriptor(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return system_status("eventfd");
  return thread_.start("stretto-relay", [this](int stop) { run(stop); });
}

void OutputRelay::finish() {
  thread_.stop();
  take_added();
  for (Pipe& pipe : pipes_) drain(pipe);
  if (std::exchange(carries_log_, false)) set_log_sink({});
  write_said();
}

void OutputRelay::run(int stop) {
  while (true) {
    // A negative number is skipped by poll(): a pipe that has ended.
    std::vector<pollfd> entries{
        {stop, POLLIN, 0}, {wake_.get(), POLLIN, 0}, {writer_.get(), POLLIN, 0}};
    for (const Pipe& pipe : pipes_) entries.push_back({pipe.source.get(), POLLIN, 0});
    if (::poll(entries.data(), entries.size(), -1) < 0) continue;
    if (entries[0].revents != 0) return;
    for (std::size_t i = 0; i < pipes_.size(); ++i) {
      if (entries[i + 3].revents != 0) copy(pipes_[i]);
    }
    if (entries[1].revents != 0) {
      take_added();
      write_said();
    }
    if (entries[2].revents == 0) continue;
    for (Pipe& pipe : pipes_) drain(pipe);
    writer_.reset();
  }
}

bool OutputRelay::copy(Pipe& pipe) {
  std::array<char, kPiece> bytes;
  const ssize_t count = ::read(pipe.source.get(), bytes.data(), bytes.size());
  if (count < 0 && would_block(errno)) return errno == EINTR;
  if (count <= 0) {
    close(pipe);
    return false;
  }
  std::string output;
  const std::string_view text(bytes.data(), static_cast<std::size_t>(count));
  if (pipe.marked_lines) {
    std::string marked;
    pipe.marked_lines->add(text, output, marked);
    // Its reader may have ended.
    write_fully(pipe.marked.get(), marked);
  } else {
    pipe.lines.add(text, output);
  }
  write(pipe.target, output);
  return true;
}

void OutputRelay::drain(Pipe& pipe) {
  // Bounded: a process that has escaped from its rank's group may write for ever.
  for (std::size_t bytes = 0; pipe.source.valid() && bytes < kLargestPipe; bytes += kPiece) {
    if (!copy(pipe)) break;
  }
  if (pipe.source.valid()) close(pipe);
}

void OutputRelay::close(Pipe& pipe) {
  std::string output;
  pipe.lines.finish(output);
  if (pipe.marked_lines) pipe.marked_lines->finish(output);
  write(pipe.target, output);
  pipe.source.reset();
  pipe.marked.reset();
}

void OutputRelay::write(int target, std::string_view text) {
  // Marked lines do not have to wait for a mutex if nothing else has come with them.
  if (text.empty()) return;
  is_writing_ = true;
  int error_number = 0;
  {
    const std::lock_guard lock(mutex_of(target));
    if (target == STDOUT_FILENO) line_open = text.back() != '\n';
    error_number = write_fully(target, text);
  }
  is_writing_ = false;
  if (error_number == 0 || error_number == EPIPE || std::exchange(said_what_is_lost_, true)) return;
  const Status status = system_status("some of the ranks' output is lost", error_number);
  say(fmt::format("stretto run: {}\n", status.message()));
}

void OutputRelay::write_said() {
  std::string said;
  {
    const std::lock_guard lock(mutex_);
    said.swap(said_);
  }
  write(STDERR_FILENO, said);
}

void write_own_line(std::string_view line) {
  const std::lock_guard lock(output_mutex);
  if (line_open) write_fully(STDOUT_FILENO, "\n");
  write_fully(STDOUT_FILENO, line);
}

int write_fully(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (would_block(errno)) {
      pollfd entry{fd, POLLOUT, 0};
      ::poll(&entry, 1, -1);
    } else {
      return errno;
    }
  }
  return 0;
}

}  // namespace stretto::launch

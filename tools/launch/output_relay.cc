// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/output_relay.h"

#include <fcntl.h>
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
#include "stretto/base/poll.h"
#include "stretto/base/would_block.h"

namespace stretto::launch {
namespace {

// The most that a pipe can hold, unless a privileged process has changed it.
constexpr std::size_t kLargestPipe = std::size_t{1} << 20;
constexpr std::size_t kPiece = 64 * 1024;

// How long a line may stay unfinished before it is shown.
constexpr Duration kPatience = std::chrono::milliseconds(200);

constexpr int kNobody = -1;

// An output to which the relays of several hosts write. Standard error is an output of its own if
// it leads to another file than standard output: then it does not wait until that one is read.
struct Output {
  std::mutex mutex;
  // The pipe whose line stands unfinished in the output; guarded by the mutex.
  int unfinished = kNobody;

  // Call it with the mutex locked. Returns what write_fully() returns.
  int write(int target, int source, std::string text) {
    if (text.empty()) return 0;
    if (unfinished != kNobody && unfinished != source) text.insert(0, 1, '\n');
    unfinished = text.back() == '\n' ? kNobody : source;
    return write_fully(target, text);
  }
};

bool are_same_file(int one, int other) {
  struct stat first {};
  struct stat second {};
  return ::fstat(one, &first) == 0 && ::fstat(other, &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

Output& output_of(int target) {
  static Output output;
  static Output errors;
  static const bool differ = !are_same_file(STDOUT_FILENO, STDERR_FILENO);
  return differ && target == STDERR_FILENO ? errors : output;
}

}  // namespace

void LinePrefixer::finish() {
  const bool has_ended = held_.empty() ? last_taken_ == '\n' : held_.back() == '\n';
  if (!prefix_.empty() && !has_ended) held_ += '\n';
}

bool LinePrefixer::holds_line() const {
  return held_.size() >= kLongestLine || held_.find_first_of("\r\n") != std::string::npos;
}

std::string LinePrefixer::take(bool all, bool in_place) {
  std::string_view text = held_;
  if (!in_place && last_taken_ != '\n') {
    // Somebody else has ended that line already.
    if (text.starts_with('\n')) text.remove_prefix(1);
    last_taken_ = '\n';
  }
  std::string output;
  while (!text.empty()) {
    const std::size_t end = text.find_first_of("\r\n");
    if (end == std::string_view::npos && !all && text.size() < kLongestLine) break;
    const std::string_view piece = text.substr(0, std::min(end, text.size() - 1) + 1);
    text.remove_prefix(piece.size());
    const bool begins_line = last_taken_ == '\n' || last_taken_ == '\r';
    // Some progress bars begin with a carriage return. It would print a prefix and nothing else.
    if (begins_line && piece == "\r" && !prefix_.empty()) continue;
    // A line feed may belong to the carriage return before it.
    if (begins_line && (last_taken_ == '\n' || piece != "\n")) output += prefix_;
    output += piece;
    last_taken_ = piece.back();
  }
  held_.erase(0, held_.size() - text.size());
  return output;
}

void MarkedLines::add(std::string_view bytes, std::string& output, std::string& marked) {
  held_ += bytes;
  std::size_t begin = held_.find(marker_);
  while (begin != std::string::npos) {
    output.append(held_, 0, begin);
    held_.erase(0, begin);
    const std::size_t end = held_.find('\n');
    if (end == std::string::npos) return;
    marked.append(held_, marker_.size(), end + 1 - marker_.size());
    held_.erase(0, end + 1);
    begin = held_.find(marker_);
  }
  // The last bytes may be the beginning of a marker.
  std::size_t kept = std::min(held_.size(), marker_.size() - 1);
  while (!held_.ends_with(std::string_view(marker_).substr(0, kept))) --kept;
  output.append(held_, 0, held_.size() - kept);
  held_.erase(0, held_.size() - kept);
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

void OutputRelay::add_marking(FileDescriptor source, int target, std::string marker) {
  add({.source = std::move(source),
       .target = target,
       .lines = LinePrefixer(std::move(marker)),
       .is_marking = true});
}

void OutputRelay::add(Pipe pipe) {
  ::fcntl(pipe.source.get(), F_SETFL, O_NONBLOCK);
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
  // Starts as if woken, to take the pipes that were added before.
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
    // poll() skips negative numbers, which pipes that have ended have.
    std::vector<pollfd> entries{
        {stop, POLLIN, 0}, {wake_.get(), POLLIN, 0}, {writer_.get(), POLLIN, 0}};
    TimePoint due = TimePoint::max();
    for (const Pipe& pipe : pipes_) {
      entries.push_back({pipe.source.get(), POLLIN, 0});
      due = std::min(due, pipe.due);
    }
    const int wait_ms = poll_milliseconds(Deadline(due).remaining());
    if (::poll(entries.data(), entries.size(), wait_ms) < 0) continue;
    // Input that arrives while other pipes are written may be the rest of a line, so `now` is read
    // before.
    const TimePoint now = Clock::now();
    if (entries[0].revents != 0) return;
    for (std::size_t i = 0; i < pipes_.size(); ++i) {
      if (entries[i + 3].revents != 0) {
        copy(pipes_[i]);
      } else if (now >= pipes_[i].due) {
        pass_on_unfinished(pipes_[i]);
      }
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
  const std::string_view text(bytes.data(), static_cast<std::size_t>(count));
  if (pipe.marked_lines) {
    std::string output;
    std::string marked;
    pipe.marked_lines->add(text, output, marked);
    // The result does not matter: the reader of these lines may have ended.
    write_fully(pipe.marked.get(), marked);
    pipe.lines.add(output);
  } else {
    pipe.lines.add(text);
  }
  pass_on(pipe, false);
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
  if (pipe.marked_lines) pipe.lines.add(pipe.marked_lines->finish());
  pipe.lines.finish();
  pass_on(pipe, true);
  pipe.source.reset();
  pipe.marked.reset();
}

void OutputRelay::pass_on(Pipe& pipe, bool all) {
  // If only marked lines have come, there is no need to wait for the mutex.
  if (all ? !pipe.lines.holds_nothing() : pipe.lines.holds_line()) {
    is_writing_ = true;
    int error_number = 0;
    {
      Output& output = output_of(pipe.target);
      const std::lock_guard lock(output.mutex);
      const int source = pipe.source.get();
      std::string text = pipe.lines.take(all, pipe.is_marking || output.unfinished == source);
      error_number = pipe.is_marking ? write_fully(pipe.target, text)
                                     : output.write(pipe.target, source, std::move(text));
    }
    is_writing_ = false;
    note_loss(error_number);
    pipe.due = TimePoint::max();
  }
  if (pipe.lines.holds_nothing() || pipe.is_marking) return;
  if (pipe.due == TimePoint::max()) pipe.due = Clock::now() + kPatience;
}

void OutputRelay::pass_on_unfinished(Pipe& pipe) {
  bool has_place = false;
  {
    Output& output = output_of(pipe.target);
    const std::unique_lock lock(output.mutex, std::try_to_lock);
    has_place = lock && (output.unfinished == kNobody || output.unfinished == pipe.source.get());
  }
  pipe.due = Clock::now() + kPatience;
  if (has_place) pass_on(pipe, true);
}

void OutputRelay::note_loss(int error_number) {
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
  is_writing_ = true;
  write_own_lines(STDERR_FILENO, std::move(said));
  is_writing_ = false;
}

void write_own_lines(int target, std::string lines) {
  if (lines.empty()) return;
  Output& output = output_of(target);
  const std::lock_guard lock(output.mutex);
  output.write(target, kNobody, std::move(lines));
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

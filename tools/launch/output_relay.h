// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"
#include "stretto/base/thread.h"

namespace stretto::launch {

// Cuts bytes from a pipe into lines and puts a prefix before each. A carriage return ends a line
// too, as progress bars use it. An unfinished line is held until its end comes, until it has
// kLongestLine bytes, or until the caller takes it; its rest then follows without a second prefix.
// With an empty prefix all bytes stay as they are.
class LinePrefixer {
 public:
  static constexpr std::size_t kLongestLine = 64 * 1024;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  void add(std::string_view bytes) { held_ += bytes; }
  // Call it after the last byte: ends an unfinished line, if there is a prefix.
  void finish();
  bool holds_nothing() const { return held_.empty(); }
  // Whether it holds a finished line, or kLongestLine bytes.
  bool holds_line() const;
  // Takes the finished lines or, if `all`, everything. `in_place`: the last text taken still stands
  // at the end of the output; otherwise somebody else has ended its line if it had no end.
  std::string take(bool all, bool in_place);

 private:
  std::string prefix_;
  std::string held_;
  char last_taken_ = '\n';
};

// Takes marked lines out of a stream: the text from a `marker` to the end of its line. Text before
// the marker on the same line stays in the stream.
class MarkedLines {
 public:
  // Text is held while it may be the beginning of the marker, so the marker's first character
  // should be one that texts do not contain.
  explicit MarkedLines(std::string marker) : marker_(std::move(marker)) {}

  // Appends the text behind each marker to `marked`, line by line, and the rest to `output`.
  void add(std::string_view bytes, std::string& output, std::string& marked);
  std::string finish() { return std::exchange(held_, {}); }

 private:
  std::string marker_;
  std::string held_;
};

// Returns "[3] ", in the rank's colour if `coloured`.
std::string rank_prefix(int rank, bool coloured);

// Whether text for this descriptor may have colours: it is a terminal, and neither NO_COLOR nor
// TERM=dumb forbids them.
bool wants_colour(int fd);

// Copies what ranks write to this process's own output, line by line, on a thread of its own, so
// that a terminal that stands still does not block the launcher. An unfinished line is shown after
// a moment, unless another pipe's line stands unfinished in the same output; it is ended there as
// soon as another pipe, or this process itself, has a line. When the reader of the output has gone,
// the relay discards the ranks' output and the ranks run on.
class OutputRelay {
 public:
  OutputRelay() = default;
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;
  ~OutputRelay() { finish(); }

  // Call it before or after start(), on the same thread; never blocks. `source` is the reading end
  // of a pipe; `target` stays open.
  void add(FileDescriptor source, int target, std::string prefix);
  // The same for a pipe with marked lines. They go to `marked`, which is closed when the pipe ends.
  void add_marked(FileDescriptor source, int target, std::string marker, FileDescriptor marked);
  // The opposite: marks each line. A MarkedLines at the other end of `target` takes them out again.
  // They do not count as lines of the output, and are written only when they are complete.
  void add_marking(FileDescriptor source, int target, std::string marker);
  // `writer` may be a descriptor that becomes readable when the writing process has ended (a
  // pidfd). Then the relay passes on what the pipes hold and closes them, even if others could
  // still write to them.
  Status start(FileDescriptor writer = {});
  // Prints a line of this process, with its line end, to standard error. Never blocks; any thread
  // may call it after start(). Drops the line if 1 MiB of such lines is still unread.
  void say(std::string_view line);
  // Sends the lines of this process's log the same way until finish(). Call it after start(), on
  // one relay at a time.
  void carry_log();
  // Whether it is writing now, which lasts while the reader of the output does not read. Any thread
  // may ask.
  bool is_writing() const { return is_writing_; }
  // Passes on what the pipes still hold and ends, even if somebody could still write to them, and
  // even if start() was never called. Blocks while the reader of the output does not read.
  void finish();

 private:
  struct Pipe {
    FileDescriptor source;
    int target;
    LinePrefixer lines;
    std::optional<MarkedLines> marked_lines = std::nullopt;
    FileDescriptor marked = {};
    bool is_marking = false;
    TimePoint due = TimePoint::max();  // When an unfinished line is shown.
  };

  void run(int stop);
  void add(Pipe pipe);
  void wake() const;
  // Takes the pipes that add() has added since the last call.
  void take_added();
  // Copies one piece. False at the end of the pipe, or if there is nothing (more) to read.
  bool copy(Pipe& pipe);
  void drain(Pipe& pipe);
  void close(Pipe& pipe);
  // Writes the finished lines of `pipe` or, if `all`, everything that it holds.
  void pass_on(Pipe& pipe, bool all);
  void pass_on_unfinished(Pipe& pipe);
  void note_loss(int error_number);
  void write_said();

  std::mutex mutex_;
  std::vector<Pipe> added_;  // Guarded by the mutex.
  std::string said_;         // Guarded by the mutex, too.
  bool carries_log_ = false;
  FileDescriptor wake_;  // An eventfd, once the thread runs.
  FileDescriptor writer_;
  std::vector<Pipe> pipes_;
  bool said_what_is_lost_ = false;
  std::atomic<bool> is_writing_ = false;
  StoppableThread thread_;
};

// Writes lines of this process, with their line ends, to standard output or standard error. If a
// relay has left a line unfinished there, it is ended first.
void write_own_lines(int target, std::string lines);

// Writes all of `text`, however slowly it is read. Returns 0, or the errno of the failure: EPIPE
// when the reader has gone.
int write_fully(int fd, std::string_view text);

}  // namespace stretto::launch

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

// Cuts what a pipe brings into lines and puts a prefix before each; a carriage return ends one,
// too, as that of a progress bar. What has not ended yet is held until it has, is longer than
// kLongestLine, or is asked for: then it is continued without a second prefix. With an empty prefix
// every byte stays as it is.
class LinePrefixer {
 public:
  static constexpr std::size_t kLongestLine = 64 * 1024;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  void add(std::string_view bytes) { held_ += bytes; }
  // After the last byte: a line with a prefix gets the end that it lacks.
  void finish();
  bool holds_nothing() const { return held_.empty(); }
  // Whether it holds a line that goes on without being asked for.
  bool holds_line() const;
  // What goes on now: lines, or all of it. `in_place` says that what was taken last still stands at
  // the end of the output; otherwise somebody else has ended that line if it had no end.
  std::string take(bool all, bool in_place);

 private:
  std::string prefix_;
  std::string held_;
  char last_taken_ = '\n';
};

// Takes out of a pipe what stands between a `marker` and the end of its line. What else there is on
// that line goes on.
class MarkedLines {
 public:
  // Text that ends like the beginning of the marker is held until more comes: its first character
  // is to be one that texts do not contain.
  explicit MarkedLines(std::string marker) : marker_(std::move(marker)) {}

  // Appends to `marked` what follows the markers, line by line, and to `output` the rest.
  void add(std::string_view bytes, std::string& output, std::string& marked);
  std::string finish() { return std::exchange(held_, {}); }

 private:
  std::string marker_;
  std::string held_;
};

// "[3] ", in the rank's colour if `coloured`.
std::string rank_prefix(int rank, bool coloured);

// Whether text for this file descriptor may contain colours: a terminal, and nobody asked for none
// (NO_COLOR, TERM=dumb).
bool wants_colour(int fd);

// Copies what ranks write to this process's own output, line by line, on a thread of its own: a
// terminal that stands still must not keep the launcher from its duties. A line that has not ended
// after a moment is shown, unless one of another pipe stands unfinished in the same output; it is
// ended there as soon as another pipe, or this process itself, has a line. When the reader of the
// output has gone, the ranks' output is thrown away and the ranks go on.
class OutputRelay {
 public:
  OutputRelay() = default;
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;
  ~OutputRelay() { finish(); }

  // Before or after start(), by the same thread; never blocks. `source` is the reading end of a
  // pipe; `target` stays open.
  void add(FileDescriptor source, int target, std::string prefix);
  // The same for a pipe with marked lines: they go to `marked`, which ends with the pipe.
  void add_marked(FileDescriptor source, int target, std::string marker, FileDescriptor marked);
  // The opposite: the other end of `target` takes these lines out of it by their marker. They end
  // no line there, and nobody has to see them before they have ended.
  void add_marking(FileDescriptor source, int target, std::string marker);
  // `writer` may be a descriptor that becomes readable when the process that writes has ended (a
  // pidfd): then the pipes end with what they hold, whoever else could still write to them.
  Status start(FileDescriptor writer = {});
  // A line of this process's own, with its end, for standard error. Never blocks, and may be called
  // by any thread after start(). Left out if a whole pipe of such lines waits to be read.
  void say(std::string_view line);
  // Has the lines of this process's log go the same way until finish(). Call it after start(), of
  // one relay at a time.
  void carry_log();
  // Whether it is writing at this moment: as long as the reader of the output does not read. Any
  // thread.
  bool is_writing() const { return is_writing_; }
  // Passes on what the pipes still hold and ends, whether or not somebody could still write to
  // them, or whether it had been started. Blocks while the reader of the output does not read.
  void finish();

 private:
  struct Pipe {
    FileDescriptor source;
    int target;
    LinePrefixer lines;
    std::optional<MarkedLines> marked_lines = std::nullopt;
    FileDescriptor marked = {};
    bool is_marking = false;
    TimePoint due = TimePoint::max();  // When an unfinished line goes on.
  };

  void run(int stop);
  void add(Pipe pipe);
  void wake() const;
  // Those that have been added since.
  void take_added();
  // False at the end of the pipe, or if there is nothing (more) to read.
  bool copy(Pipe& pipe);
  void drain(Pipe& pipe);
  void close(Pipe& pipe);
  // Lines, or all that it holds.
  void pass_on(Pipe& pipe, bool all);
  void pass_on_unfinished(Pipe& pipe);
  void note_loss(int error_number);
  void write_said();

  std::mutex mutex_;
  std::vector<Pipe> added_;  // Guarded by the mutex.
  std::string said_;         // Guarded by it, too.
  bool carries_log_ = false;
  FileDescriptor wake_;  // An eventfd, once the thread runs.
  FileDescriptor writer_;
  std::vector<Pipe> pipes_;
  bool said_what_is_lost_ = false;
  std::atomic<bool> is_writing_ = false;
  StoppableThread thread_;
};

// Writes lines of this process, with their ends, to standard output or standard error. They are
// lines of their own even where what relays have written there ends within a line.
void write_own_lines(int target, std::string lines);

// Writes all of it, however slowly it is read. Returns 0, or the errno for which it gave up: EPIPE
// when the reader has gone.
int write_fully(int fd, std::string_view text);

}  // namespace stretto::launch

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

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"
#include "stretto/base/thread.h"

namespace stretto::launch {

// Cuts a pipe into lines and puts a prefix before each. A line of more than kLongestLine bytes is
// passed on in pieces. With an empty prefix nothing is added, no line end either: then it only
// keeps the lines of several ranks apart.
class LinePrefixer {
 public:
  static constexpr std::size_t kLongestLine = 64 * 1024;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  // Appends to `output` every line that `bytes` completes.
  void add(std::string_view bytes, std::string& output);
  // The last line, if the pipe has ended without a line end, which it gets if it has a prefix.
  void finish(std::string& output);

 private:
  std::string prefix_;
  std::string partial_;
};

// Takes the lines that begin with `marker` out of a pipe; what else a marker follows on the same
// line goes on. Text is kept until its line ends, unless that is longer than LinePrefixer's.
class MarkedLines {
 public:
  explicit MarkedLines(std::string marker) : marker_(std::move(marker)) {}

  // Appends to `marked` what follows the markers, line by line, and to `output` the rest.
  void add(std::string_view bytes, std::string& output, std::string& marked);
  void finish(std::string& output) { output += std::exchange(partial_, {}); }

 private:
  std::string marker_;
  std::string partial_;
};

// "[3] ", in the rank's colour if `coloured`.
std::string rank_prefix(int rank, bool coloured);

// Whether text for this file descriptor may contain colours: a terminal, and nobody asked for none
// (NO_COLOR, TERM=dumb).
bool wants_colour(int fd);

// Copies what ranks write to this process's own output, line by line, on a thread of its own: a
// terminal that stands still must not keep the launcher from its duties. What this process itself
// has to say meanwhile goes between these lines. When the reader of the output has gone, the ranks'
// output is thrown away and the ranks go on.
class OutputRelay {
 public:
  OutputRelay() = default;
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;
  ~OutputRelay() { finish(); }

  // Before or after start(), by the same thread; never blocks. `source` is the reading end of a
  // pipe, non-blocking; `target` stays open.
  void add(FileDescriptor source, int target, std::string prefix);
  // The same for a pipe with marked lines: they go to `marked`, which ends with the pipe.
  void add_marked(FileDescriptor source, int target, std::string marker, FileDescriptor marked);
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
  void write(int target, std::string_view text);
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

// Writes a line, with its end, to standard output. It is a line of its own even where what relays
// have written there ends within a line.
void write_own_line(std::string_view line);

// Writes all of it, however slowly it is read. Returns 0, or the errno for which it gave up: EPIPE
// when the reader has gone.
int write_fully(int fd, std::string_view text);

}  // namespace stretto::launch

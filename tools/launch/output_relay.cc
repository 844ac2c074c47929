// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/output_relay.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <mutex>

#include <fmt/format.h>

namespace stretto::launch {
namespace {

// What a pipe can hold at most, unless somebody with privileges has changed it.
constexpr std::size_t kLargestPipe = std::size_t{1} << 20;
constexpr std::size_t kPiece = 64 * 1024;

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
  streams_.push_back({std::move(source), target, LinePrefixer(std::move(prefix))});
}

void OutputRelay::add_marked(FileDescriptor source, int target, std::string marker,
                             FileDescriptor marked) {
  streams_.push_back({.source = std::move(source),
                      .target = target,
                      .lines = LinePrefixer({}),
                      .marked_lines = MarkedLines(std::move(marker)),
                      .marked = std::move(marked)});
}

Status OutputRelay::start() {
  return thread_.start("stretto-relay", [this](int stop) { run(stop); });
}

void OutputRelay::finish() {
  if (thread_.stop()) return;
  for (Stream& stream : streams_) drain(stream);
}

void OutputRelay::run(int stop) {
  while (true) {
    // A negative number is skipped by poll(): a stream that has ended.
    std::vector<pollfd> entries{{stop, POLLIN, 0}};
    for (const Stream& stream : streams_) entries.push_back({stream.source.get(), POLLIN, 0});
    if (::poll(entries.data(), entries.size(), -1) < 0) continue;
    const bool last_round = entries[0].revents != 0;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      if (last_round) {
        drain(streams_[i]);
      } else if (entries[i + 1].revents != 0) {
        copy(streams_[i]);
      }
    }
    if (last_round) return;
  }
}

bool OutputRelay::copy(Stream& stream) {
  std::array<char, kPiece> bytes;
  const ssize_t count = ::read(stream.source.get(), bytes.data(), bytes.size());
  if (count < 0 && errno == EINTR) return true;
  if (count < 0 && errno == EAGAIN) return false;
  if (count <= 0) {
    close(stream);
    return false;
  }
  std::string output;
  const std::string_view text(bytes.data(), static_cast<std::size_t>(count));
  if (stream.marked_lines) {
    std::string marked;
    stream.marked_lines->add(text, output, marked);
    // Its reader may have ended.
    write_fully(stream.marked.get(), marked);
  } else {
    stream.lines.add(text, output);
  }
  write(stream.target, output);
  return true;
}

void OutputRelay::drain(Stream& stream) {
  // Bounded: a process that has escaped from its rank's group may write for ever.
  for (std::size_t bytes = 0; stream.source.valid() && bytes < kLargestPipe; bytes += kPiece) {
    if (!copy(stream)) break;
  }
  if (stream.source.valid()) close(stream);
}

void OutputRelay::close(Stream& stream) {
  std::string output;
  stream.lines.finish(output);
  if (stream.marked_lines) stream.marked_lines->finish(output);
  write(stream.target, output);
  stream.source.reset();
  stream.marked.reset();
}

void OutputRelay::write(int target, std::string_view text) {
  // Relays of several hosts write to the same output.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const int error_number = write_fully(target, text);
  if (error_number == 0 || error_number == EPIPE || std::exchange(said_what_is_lost_, true)) return;
  const Status status = system_status("some of the ranks' output is lost", error_number);
  write_fully(STDERR_FILENO, fmt::format("stretto run: {}\n", status.message()));
}

int write_fully(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      pollfd entry{fd, POLLOUT, 0};
      ::poll(&entry, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace stretto::launch

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace stretto::bench {

// One collective on one rank. Elements are float32, reductions are sums, the root is rank 0.
struct Job {
  std::string operation = {};  // "all_reduce", ...
  std::string algorithm = {};
  float* input = nullptr;   // Null for a barrier.
  float* output = nullptr;  // The input itself, if in place.
  std::size_t count = 0;    // Elements of the larger side.
  std::size_t share = 0;    // count / ranks.
  // As many all_reduces at a time, each of an equal part of the buffer.
  std::size_t at_once = 1;
};

// A library under measurement, as the driver sees it. One thread of each rank uses it. Failures are
// exceptions, which end the driver; its answer then says why.
class Library {
 public:
  Library(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Library() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }
  // The library's own name for its version, on one line.
  virtual std::string version() const = 0;
  // Zeroed memory that the library itself hands out, freed with the object; null if it has none.
  virtual std::shared_ptr<float> allocate_registered(std::size_t) { return nullptr; }
  // Whether one thread can start several operations that are then under way at the same time.
  virtual bool runs_several() const { return false; }
  // Returns a blocking call, as a user would write it, ready to be called many times; empty if the
  // library has no such operation. The buffers of `job` outlive it.
  virtual std::function<void()> make_call(const Job& job) = 0;

 protected:
  const int rank_;
  const int size_;
};

// Where a driver meets its parent; from the command line --board PATH --meet FOLDER.
struct MeetingPlace {
  std::string board = {};  // Where ranks meet each other: see tools/bench/board.h.
  // A folder with FIFOs. By ask.RANK the parent asks a rank for a line of the benchmark, in words
  //   all_reduce BYTES SECONDS IN_PLACE BUFFERS ALGORITHM AT_ONCE
  // (sizes are those of nccl-tests, of the larger side on one rank; in place is 0 or 1; buffers are
  // registered, private or huge; the algorithm is - for the library's choice), or "quit". To
  // answers each rank writes an object of JSON a line: first its rank, its process number and the
  // library's version, then for each request its outcome ("ok", "wrong", "failed" or
  // "unsupported"), why, and on rank 0 the times.
  std::string folder = {};
};
// Throws std::runtime_error if something is missing.
MeetingPlace meeting_place_of(int argc, char** argv);

// Writes a file with this text beside its place and then renames it, so that nobody reads half of
// it. Throws std::runtime_error if that is not possible.
void write_whole(const std::string& path, const std::string& text);

// The number after `name` on the command line. Throws std::runtime_error if it is missing.
int number_behind(int argc, char** argv, const std::string& name);

// Says that this rank is ready, then measures what the parent asks for until it says "quit". In
// between the rank blocks in reading, so that it takes no time from the system under measurement.
// Throws what the library throws, and std::runtime_error if the parent is gone.
void drive(Library& library, const MeetingPlace& place);

// Makes a library and drives it; prints what is wrong on stderr. Returns main()'s exit status.
int drive_or_explain(const std::function<std::unique_ptr<Library>()>& make, int argc, char** argv);

}  // namespace stretto::bench

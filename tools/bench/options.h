// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/base/operation.h"
#include "stretto/base/reduce_op.h"

namespace stretto::bench {

enum class Buffers { registered, private_memory, huge };  // Huge: private, in huge pages.

// The command line of `stretto bench`.
struct BenchOptions {
  std::vector<Collective> operations = {};  // Never empty after parsing.
  int ranks = 0;                            // 0: one per usable core, at least 2.
  std::size_t min_bytes = 8;
  std::size_t max_bytes = std::size_t{256} << 20;
  std::size_t step = 4;                 // Each size is the previous one times this.
  std::vector<std::size_t> bytes = {};  // If not empty: the sizes, instead of the above.
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::vector<Buffers> buffers = {};            // Never empty after parsing.
  std::string algorithm = {};                   // Empty: what the library chooses.
  std::string transport = {};                   // "shm", "tcp"; empty: what the library chooses.
  std::optional<bool> in_place = std::nullopt;  // Empty: usually_in_place().
  double seconds_per_line = 0.25;
  int repeats = 1;
  bool pin = true;
  bool check = true;
  bool json = false;
  bool explain = false;
  bool compression = false;
  // The process that starts the ranks sets these for rank 0: terminals that rank 0 writes to
  // itself, because its standard output and error are pipes, whose relative order the launcher does
  // not know.
  std::string table_terminal = {};
  std::string progress_terminal = {};
};

// The result of parsing a command line: either options, or an exit status because nothing is left
// to do (0: help was printed; 2: a mistake was explained on standard error).
struct ParsedOptions {
  std::optional<BenchOptions> options = std::nullopt;
  int status = 0;
};
ParsedOptions parse_options(const std::vector<std::string>& arguments);

// Parses a size such as "64", "64K", "4 KiB", "1.5M" or "1G", in powers of 1024. Empty if `text` is
// no size.
std::optional<std::size_t> parse_bytes(std::string text);
// Returns "64 KiB" for 65536: the largest unit, up to GiB, of which `bytes` is a whole multiple.
std::string format_bytes(std::size_t bytes);

// The operation's name on the command line and in results: the library's name, except for
// "send_recv".
std::string operation_name(Collective operation);

// The sizes to measure, in ascending order, including the smallest and the largest.
std::vector<std::size_t> sizes_of(const BenchOptions& options);

}  // namespace stretto::bench

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
  std::size_t step = 4;                 // From size to size, as a factor.
  std::vector<std::size_t> bytes = {};  // These sizes instead.
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::vector<Buffers> buffers = {};            // Never empty after parsing.
  std::string algorithm = {};                   // Empty: what the library chooses.
  std::string transport = {};                   // "shm", "tcp"; empty: what the library chooses.
  std::optional<bool> in_place = std::nullopt;  // Empty: as usual for the operation.
  double seconds_per_line = 0.25;
  int repeats = 1;
  bool pin = true;
  bool check = true;
  bool json = false;
  bool explain = false;
  bool compression = false;
  // Set by the process that starts the ranks, for rank 0: terminals that it writes to by itself,
  // because its own output and errors are pipes, whose order the launcher does not know.
  std::string table_terminal = {};
  std::string progress_terminal = {};
};

// What became of a command line: options, or an exit status because there is nothing left to do
// (help was printed: 0; a mistake was explained on standard error: 2).
struct ParsedOptions {
  std::optional<BenchOptions> options = std::nullopt;
  int status = 0;
};
ParsedOptions parse_options(const std::vector<std::string>& arguments);

// "64", "64K", "4 KiB", "1.5M", "1G": bytes, by powers of 1024. Nothing if it is no size.
std::optional<std::size_t> parse_bytes(std::string text);
// "64 KiB": bytes as people write them. Powers of 1024 where they divide, else bytes.
std::string format_bytes(std::size_t bytes);

// The name on the command line and in results: that of the library, but "send_recv".
std::string operation_name(Collective operation);

// The sizes to measure, ascending; both the smallest and the largest are among them.
std::vector<std::size_t> sizes_of(const BenchOptions& options);

}  // namespace stretto::bench

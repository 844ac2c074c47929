// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/commands.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "stretto/base/cores.h"
#include "stretto/base/environment.h"
#include "stretto/job/slurm.h"
#include "tools/bench/options.h"
#include "tools/bench/rank_program.h"

namespace stretto::tools {
namespace {

bool is_rank() {
  const Environment& environment = process_environment();
  // A shell that srun has started is a step of one task, and not a rank.
  const bool task = job::in_slurm_step(environment) &&
                    environment.get("SLURM_STEP_NUM_TASKS").value_or("1") != "1";
  return task || environment.get("STRETTO_RANK") || environment.get("RANK") ||
         environment.get("OMPI_COMM_WORLD_RANK") || environment.get("PMI_RANK");
}

// Returns the path of the terminal behind a file descriptor; empty if it is no terminal.
std::string terminal_of(int fd) {
  std::array<char, 256> path{};
  return ::ttyname_r(fd, path.data(), path.size()) == 0 ? path.data() : "";
}

int start_ranks(const bench::BenchOptions& options, const std::vector<std::string>& arguments) {
  const int ranks = options.ranks > 0 ? options.ranks : std::max(2, usable_cores());
  std::vector<std::string> run = {"-n", std::to_string(ranks), "--no-prefix",
                                  "--", "/proc/self/exe",      "bench"};
  run.insert(run.end(), arguments.begin(), arguments.end());
  const std::string table = terminal_of(STDOUT_FILENO);
  const std::string progress = terminal_of(STDERR_FILENO);
  if (!table.empty()) run.insert(run.end(), {"--table-terminal", table});
  if (!progress.empty()) run.insert(run.end(), {"--progress-terminal", progress});
  return run_command(run);
}

}  // namespace

int bench_command(const std::vector<std::string>& arguments) {
  bench::ParsedOptions parsed = bench::parse_options(arguments);
  if (!parsed.options) return parsed.status;
  bench::BenchOptions& options = *parsed.options;
  if (!is_rank()) return start_ranks(options, arguments);
  if (options.compression && options.explain) return bench::run_explaining_compression(options);
  if (options.compression) return bench::run_compressing_rank(options);
  return options.explain ? bench::run_explaining_rank(options) : bench::run_rank(options);
}

}  // namespace stretto::tools

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/rank_program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "stretto/base/cores.h"
#include "stretto/base/environment.h"
#include "stretto/base/memory_limit.h"
#include "stretto/base/parse_number.h"
#include "stretto/bootstrap/handshake.h"
#include "tools/bench/comm_coordinator.h"
#include "tools/bench/copy_bound.h"
#include "tools/bench/reporter.h"

namespace stretto::bench {
namespace {

// The number of this rank among those of its host, as the launcher says.
int local_rank(const Communicator& comm) {
  for (const char* variable : {"STRETTO_LOCAL_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                               "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    const auto text = process_environment().get(variable);
    if (text) return std::max(0, parse_number<int>(*text).value_or(0));
  }
  return comm.rank().value();
}

// The number of cores that all ranks may use together: launchers may have given each its own. If a
// quota allows fewer cores, the quota decides.
int cores_of_all(Communicator& comm) {
  cpu_set_t set;
  CPU_ZERO(&set);
  (void)::sched_getaffinity(0, sizeof(set), &set);
  const bool has_quota = usable_cores() < allowed_cores();
  std::vector<std::uint64_t> words(sizeof(set) / sizeof(std::uint64_t));
  std::memcpy(words.data(), &set, sizeof(set));
  comm.all_reduce(words, {.op = ReduceOp::bit_or}).wait();
  std::memcpy(&set, words.data(), sizeof(set));
  return has_quota ? usable_cores() : std::max(1, CPU_COUNT(&set));
}

// An upper bound of the memory that `ranks` ranks need: their buffers, those of the copies that an
// all_reduce is compared with, and what the library may stage.
std::size_t needed_bytes(const BenchOptions& options, Collective operation, std::size_t bytes,
                         int ranks) {
  const std::size_t own = usually_in_place(operation) && options.in_place.value_or(true) ? 1 : 2;
  const std::size_t copies = operation == Collective::all_reduce ? 2 : 0;
  return (own + copies + 1) * bytes * static_cast<std::size_t>(ranks);
}

struct Measurement {
  Collective operation = Collective::all_reduce;
  Buffers buffers = Buffers::registered;
  std::size_t bytes = 0;
  int repeat = 0;
};

std::vector<Measurement> plan_of(const BenchOptions& options, Collective operation, int ranks) {
  std::vector<std::size_t> sizes;
  for (const std::size_t bytes : sizes_of(options)) {
    sizes.push_back(shape_of(operation, ranks, bytes, size_bytes(options.dtype)).bytes);
  }
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  const bool has_buffers = operation != Collective::barrier;
  const auto kinds = has_buffers ? options.buffers : std::vector{Buffers::private_memory};
  std::vector<Measurement> plan;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (const std::size_t bytes : sizes) {
      for (const Buffers buffers : kinds) {
        plan.push_back({operation, buffers, bytes, repeat});
      }
    }
  }
  return plan;
}

std::string describe(const Measurement& plan) {
  if (plan.operation == Collective::barrier) return "barrier";
  return fmt::format("{} {} {}", operation_name(plan.operation), format_bytes(plan.bytes),
                     buffers_name(plan.buffers));
}

// A rank's run once it has joined the job.
class RankProgram {
 public:
  RankProgram(Communicator& comm, const BenchOptions& options, int cores)
      : comm_(comm), options_(options), cores_(cores), coordinator_(comm, cores) {}

  int run();
  void abandon() { coordinator_.abandon(); }

 private:
  // With several hosts, the number of their cores is not known here.
  bool oversubscribed() const { return coordinator_.one_host() && comm_.size() > cores_; }
  RunFacts facts() const;
  void run_line(const Measurement& plan);
  // Whether all ranks have memory for the line; prints a note if not.
  bool fits(const Measurement& plan);

  Communicator& comm_;
  const BenchOptions& options_;
  int cores_;
  RankCoordinator coordinator_;
  std::optional<Reporter> reporter_ = std::nullopt;  // On rank 0 only.
  bool wrong_ = false;
};

RunFacts RankProgram::facts() const {
  RunFacts facts{.machine = find_machine(cores_),
                 .ranks = comm_.size(),
                 .links = comm_.size() > 1 ? comm_.describe_links() : "alone",
                 .version = std::string(bootstrap::kBuild),
                 .oversubscribed = oversubscribed()};
  return facts;
}

int RankProgram::run() {
  std::vector<std::vector<Measurement>> plans;
  std::size_t line_count = 0;
  for (const Collective operation : options_.operations) {
    plans.push_back(plan_of(options_, operation, comm_.size()));
    line_count += plans.back().size();
  }
  if (comm_.rank() == 0) reporter_.emplace(options_, facts(), line_count);
  for (const std::vector<Measurement>& plan : plans) {
    const Collective operation = plan.front().operation;
    if (operation == Collective::point_to_point && comm_.size() < 2) {
      if (reporter_) reporter_->note("send_recv is left out: it needs two ranks");
      continue;
    }
    if (reporter_) reporter_->start_operation(operation);
    for (const Measurement& line : plan) run_line(line);
  }
  if (reporter_) reporter_->finish();
  return wrong_ ? 1 : 0;
}

bool RankProgram::fits(const Measurement& plan) {
  const std::size_t needed =
      needed_bytes(options_, plan.operation, plan.bytes, coordinator_.ranks_of_host());
  const std::optional<MemoryLeft> left = find_memory_left();
  std::vector<double> missing = {
      left ? static_cast<double>(needed) - static_cast<double>(left->left_bytes) : -HUGE_VAL};
  (*coordinator_).maxima(missing);
  if (missing.front() < 0) return true;
  if (reporter_) {
    reporter_->note(fmt::format("{} is left out: a host lacks {:.1f} GiB of memory for it",
                                describe(plan), std::ldexp(missing.front(), -30)));
  }
  return false;
}

void RankProgram::run_line(const Measurement& plan) {
  if (reporter_) reporter_->start_line(describe(plan));
  if (!fits(plan)) return;
  BenchCase bench_case(comm_, options_, plan.operation, plan.buffers, plan.bytes);
  Line line = measure_line(*coordinator_, bench_case, options_, oversubscribed());
  line.repeat = plan.repeat;
  line.transport =
      comm_.size() > 1 ? comm_.describe_link((comm_.rank().value() + 1) % comm_.size()) : "self";
  wrong_ = wrong_ || line.check == Check::wrong;
  if (reporter_) reporter_->add(line);
}

// The result of measure(), and whether the last call of each block was right.
struct Measured {
  Summary time = {};
  std::optional<double> copy_us = std::nullopt;
  bool right = true;
};

Measured measure_case(Coordinator& coordinator, BenchCase& bench_case,
                      const BenchOptions& options) {
  Measured measured;
  std::optional<CopyBound> copies;
  const std::size_t bytes = bench_case.shape().bytes;
  if (bench_case.operation() == Collective::all_reduce && bytes >= CopyBound::kSmallestBytes) {
    copies.emplace(bytes);
  }
  const bool check = options.check && bench_case.can_check();
  const auto between = [&] {
    if (check && !bench_case.is_right()) measured.right = false;
    if (copies) copies->sample(coordinator);
  };
  measured.time = measure(
      coordinator, {.seconds = options.seconds_per_line}, [&] { bench_case.prepare(); },
      [&] { bench_case.call(); }, between);
  if (check && !bench_case.is_right()) measured.right = false;
  std::vector<double> wrong = {measured.right ? 0.0 : 1.0};
  coordinator.maxima(wrong);
  measured.right = wrong[0] == 0;
  if (copies) measured.copy_us = copies->best_us(coordinator);
  return measured;
}

// A message and its return count as two operations.
Summary halved(Summary time) {
  for (double* value : {&time.p50_us, &time.p99_us, &time.max_us, &time.min_us}) *value /= 2;
  return time;
}

}  // namespace

Line measure_line(Coordinator& coordinator, BenchCase& bench_case, const BenchOptions& options,
                  bool oversubscribed) {
  const Collective operation = bench_case.operation();
  const Measured measured = measure_case(coordinator, bench_case, options);
  const Shape& shape = bench_case.shape();
  const bool sized = operation != Collective::barrier;
  Line line{.operation = operation_name(operation),
            .ranks = coordinator.size(),
            .bytes = shape.bytes,
            .count = shape.bytes / size_bytes(options.dtype),
            .dtype = std::string(name(options.dtype)),
            .op = reduces(operation) ? std::string(name(options.op)) : "",
            .buffers = sized ? buffers_name(bench_case.buffers()) : "-",
            .in_place = sized && bench_case.in_place(),
            .algorithm = bench_case.algorithm(),
            .version = std::string(bootstrap::kBuild)};
  line.time = operation == Collective::point_to_point ? halved(measured.time) : measured.time;
  line.copy_us = measured.copy_us;
  line.regime = regime(line.time, oversubscribed);
  if (options.check && bench_case.can_check()) {
    line.check = measured.right ? Check::ok : Check::wrong;
  }
  set_bandwidths(line, bus_factor(operation, coordinator.size()));
  return line;
}

std::unique_ptr<Communicator> join_by(const BenchOptions& options) {
  auto comm = join({.disable_shared_memory = options.transport == "tcp"});
  if (options.transport == "shm" && comm->describe_links().find("tcp") != std::string::npos) {
    throw std::runtime_error("shm: not all ranks share memory: " + comm->describe_links());
  }
  return comm;
}

int run_rank(const BenchOptions& options) {
  const auto comm = join_by(options);
  // This must come before the rank is bound to a core.
  const int cores = cores_of_all(*comm);
  if (options.pin && !pin_to_core(local_rank(*comm))) {
    fmt::print(stderr, "stretto bench: rank {} cannot be bound to a core\n", comm->rank().value());
  }
  RankProgram program(*comm, options, cores);
  try {
    const int status = program.run();
    comm->barrier().wait();
    return status;
  } catch (...) {
    program.abandon();
    throw;
  }
}

}  // namespace stretto::bench

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// One rank of a job that runs the same random collectives through MPI and through stretto:
//
//   mpirun -n P mpi_rank_program SEED FILE OPERATIONS [canary]
//
// FILE is where stretto's ranks meet. Inputs are small integers, in floating point too, so that any
// order of reduction is exact. With "canary" stretto gets one wrong number, which must be noticed.

#include <fmt/format.h>
#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string_view>
#include <vector>

#include "stretto/base/operation.h"
#include "stretto/base/random.h"
#include "stretto/communicator/communicator.h"
#include "stretto/job/join.h"

namespace stretto::testing {
namespace {

struct Team {
  MPI_Comm mpi = MPI_COMM_NULL;
  std::unique_ptr<Communicator> stretto;  // Null: this rank is not in it.
};

// One line of the program, the same on all ranks.
struct Draw {
  Collective collective;
  ReduceOp op;
  Rank root;
  std::vector<std::size_t> counts;  // Per rank; of an all_to_all, per pair. Of others the first.
  bool even;
  bool in_place;
  std::uint64_t seed;  // Of the inputs.
};

template <class T>
MPI_Datatype mpi_type() {
  if constexpr (std::is_same_v<T, float>) return MPI_FLOAT;
  if constexpr (std::is_same_v<T, double>) return MPI_DOUBLE;
  if constexpr (std::is_same_v<T, std::int8_t>) return MPI_INT8_T;
  if constexpr (std::is_same_v<T, std::uint8_t>) return MPI_UINT8_T;
  if constexpr (std::is_same_v<T, std::int32_t>) return MPI_INT32_T;
  if constexpr (std::is_same_v<T, std::int64_t>) return MPI_INT64_T;
}

// A mean is a sum here, to be divided afterwards.
MPI_Op mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::product:
      return MPI_PROD;
    case ReduceOp::min:
      return MPI_MIN;
    case ReduceOp::max:
      return MPI_MAX;
    case ReduceOp::bit_and:
      return MPI_BAND;
    case ReduceOp::bit_or:
      return MPI_BOR;
    case ReduceOp::bit_xor:
      return MPI_BXOR;
    default:
      return MPI_SUM;
  }
}

int mpi_count(std::size_t count) { return static_cast<int>(count); }

// Counts and where they begin, as MPI wants them.
struct Layout {
  std::vector<int> counts;
  std::vector<int> begins;

  explicit Layout(const std::vector<std::size_t>& list) {
    int begin = 0;
    for (const std::size_t count : list) {
      counts.push_back(mpi_count(count));
      begins.push_back(begin);
      begin += counts.back();
    }
  }
};

// What runs until it is compared.
class Trial {
 public:
  virtual ~Trial() = default;
  // Runs both, stretto first; it need not have ended when MPI has.
  virtual void run() = 0;
  // Waits for stretto. Empty, or what is different.
  virtual std::string difference() = 0;
};

template <class T>
class TypedTrial final : public Trial {
 public:
  TypedTrial(Team& team, const Draw& draw, bool canary)
      : team_(team), draw_(draw), rank_(team.stretto->rank().value()), size_(team.stretto->size()) {
    const std::size_t own = draw.counts[static_cast<std::size_t>(rank_)];
    const bool is_root = team.stretto->rank() == draw.root;
    std::size_t in = draw.counts.front();
    std::size_t out = in;
    switch (draw.collective) {
      case Collective::reduce:
        out = is_root ? in : 0;
        break;
      case Collective::reduce_scatter:
        in = whole();
        out = own;
        break;
      case Collective::all_gather:
      case Collective::gather:
        in = own;
        out = is_root || draw.collective == Collective::all_gather ? whole() : 0;
        break;
      case Collective::scatter:
        in = is_root ? whole() : 0;
        out = own;
        break;
      case Collective::all_to_all:
        in = sum(row(true));
        out = sum(row(false));
        break;
      case Collective::barrier:
        in = out = 0;
        break;
      default:
        break;
    }
    fill(in);
    expected_.assign(out, T{99});
    output_.assign(out, T{99});
    given_ = input_;
    if (canary && rank_ == 0 && in > 0) given_.back() = static_cast<T>(given_.back() + 1);
  }

  void run() override {
    start_stretto();
    run_mpi();
    if (draw_.op != ReduceOp::mean || !reduces(draw_.collective)) return;
    for (T& value : expected_) value = static_cast<T>(value / static_cast<T>(size_));
  }

  std::string difference() override {
    work_.wait();
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      if (output_[i] == expected_[i]) continue;
      return fmt::format("element {} of {} is {} by stretto and {} by MPI", i, expected_.size(),
                         +output_[i], +expected_[i]);
    }
    if (!in_place() && given_ != untouched_) return "stretto has changed its input";
    return {};
  }

 private:
  static std::size_t sum(const std::vector<std::size_t>& list) {
    return std::accumulate(list.begin(), list.end(), std::size_t{0});
  }
  std::size_t whole() const { return sum(shares()); }
  std::vector<std::size_t> shares() const {
    return {draw_.counts.begin(), draw_.counts.begin() + size_};
  }
  // What this rank sends to each rank (receives from each) in an all_to_all.
  std::vector<std::size_t> row(bool sends) const {
    std::vector<std::size_t> list;
    for (int other = 0; other < size_; ++other) {
      const int pair = sends ? rank_ * size_ + other : other * size_ + rank_;
      list.push_back(draw_.counts[static_cast<std::size_t>(pair)]);
    }
    return list;
  }
  // Only where both sides are equally long on every rank.
  bool in_place() const {
    return draw_.collective == Collective::broadcast ||
           (draw_.in_place && draw_.collective == Collective::all_reduce) ||
           (draw_.in_place && draw_.collective == Collective::all_to_all && draw_.even);
  }

  void fill(std::size_t count) {
    Random random(draw_.seed * 64 + static_cast<std::uint64_t>(rank_));
    const bool product = draw_.op == ReduceOp::product;
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = static_cast<int>(random.below(product ? 3 : 17));
      input_.push_back(static_cast<T>(product || !std::is_signed_v<T> ? value : value - 8));
    }
  }

  template <class Options>
  Options options() const {
    Options options;
    if constexpr (requires { options.op; }) options.op = draw_.op;
    if constexpr (requires { options.root; }) options.root = draw_.root;
    if constexpr (requires { options.counts; }) {
      if (!draw_.even) options.counts = shares();
    }
    return options;
  }

  void start_stretto() {
    Communicator& comm = *team_.stretto;
    untouched_ = given_;
    std::vector<T>& input = in_place() ? output_ : given_;
    if (in_place()) output_ = given_;
    switch (draw_.collective) {
      case Collective::all_reduce:
        work_ = comm.all_reduce(input, output_, options<AllReduceOptions>());
        break;
      case Collective::reduce:
        work_ = comm.reduce(input, output_, options<ReduceOptions>());
        break;
      case Collective::reduce_scatter:
        work_ = comm.reduce_scatter(input, output_, options<ReduceScatterOptions>());
        break;
      case Collective::all_gather:
        work_ = comm.all_gather(input, output_, options<AllGatherOptions>());
        break;
      case Collective::gather:
        work_ = comm.gather(input, output_, options<GatherOptions>());
        break;
      case Collective::scatter:
        work_ = comm.scatter(input, output_, options<ScatterOptions>());
        break;
      case Collective::broadcast:
        work_ = comm.broadcast(output_, options<BroadcastOptions>());
        break;
      case Collective::all_to_all: {
        AllToAllOptions all_to_all;
        if (!draw_.even) all_to_all = {.send_counts = row(true), .recv_counts = row(false)};
        work_ = comm.all_to_all(input, output_, all_to_all);
        break;
      }
      default:
        work_ = comm.barrier();
    }
  }

  void run_mpi() {
    const MPI_Datatype type = mpi_type<T>();
    const MPI_Op op = mpi_op(draw_.op);
    const int root = draw_.root.value();
    const int count = mpi_count(input_.size());
    const Layout layout(shares());
    switch (draw_.collective) {
      case Collective::all_reduce:
        MPI_Allreduce(input_.data(), expected_.data(), count, type, op, team_.mpi);
        break;
      case Collective::reduce:
        MPI_Reduce(input_.data(), expected_.data(), count, type, op, root, team_.mpi);
        break;
      case Collective::reduce_scatter:
        MPI_Reduce_scatter(input_.data(), expected_.data(), layout.counts.data(), type, op,
                           team_.mpi);
        break;
      case Collective::all_gather:
        MPI_Allgatherv(input_.data(), count, type, expected_.data(), layout.counts.data(),
                       layout.begins.data(), type, team_.mpi);
        break;
      case Collective::gather:
        MPI_Gatherv(input_.data(), count, type, expected_.data(), layout.counts.data(),
                    layout.begins.data(), type, root, team_.mpi);
        break;
      case Collective::scatter:
        MPI_Scatterv(input_.data(), layout.counts.data(), layout.begins.data(), type,
                     expected_.data(), mpi_count(expected_.size()), type, root, team_.mpi);
        break;
      case Collective::broadcast:
        expected_ = input_;
        MPI_Bcast(expected_.data(), count, type, root, team_.mpi);
        break;
      case Collective::all_to_all: {
        const Layout sent(row(true));
        const Layout received(row(false));
        MPI_Alltoallv(input_.data(), sent.counts.data(), sent.begins.data(), type, expected_.data(),
                      received.counts.data(), received.begins.data(), type, team_.mpi);
        break;
      }
      default:
        MPI_Barrier(team_.mpi);
    }
  }

  Team& team_;
  Draw draw_;
  int rank_;
  int size_;
  std::vector<T> input_;  // For MPI.
  std::vector<T> expected_;
  std::vector<T> given_;  // The same, for stretto.
  std::vector<T> untouched_;
  std::vector<T> output_;
  Work work_;  // Last: ends before its buffers go.
};

std::unique_ptr<Trial> make_trial(DType dtype, Team& team, const Draw& draw, bool canary) {
  switch (dtype) {
    case DType::f32:
      return std::make_unique<TypedTrial<float>>(team, draw, canary);
    case DType::f64:
      return std::make_unique<TypedTrial<double>>(team, draw, canary);
    case DType::u8:
      return std::make_unique<TypedTrial<std::uint8_t>>(team, draw, canary);
    case DType::i8:
      return std::make_unique<TypedTrial<std::int8_t>>(team, draw, canary);
    case DType::i32:
      return std::make_unique<TypedTrial<std::int32_t>>(team, draw, canary);
    default:
      return std::make_unique<TypedTrial<std::int64_t>>(team, draw, canary);
  }
}

// A random program, and what of it is in flight.
class Program {
 public:
  Program(std::uint64_t seed, const std::string& place, bool canary)
      : random_(seed), canary_(canary) {
    int rank = 0;
    int size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    auto world = join(
        {.rank = rank, .size = size, .rendezvous = place, .timeout = std::chrono::seconds(30)});
    teams_.push_back({MPI_COMM_WORLD, std::move(world)});
    for (int i = 0; i < 3; ++i) split();
  }

  // Empty, or what went wrong with which operation.
  std::string run(int operations) {
    for (int number = 0; number < operations; ++number) {
      add(number);
      if (in_flight_.size() < 1 + number % 5u) continue;
      std::string trouble = compare();
      if (!trouble.empty()) return trouble;
    }
    return compare();
  }

 private:
  // Each rank draws for all of them, so that all draw alike.
  void split() {
    std::vector<SplitOptions> options;
    for (int r = 0; r < teams_.front().stretto->size(); ++r) {
      SplitOptions& own = options.emplace_back();
      if (random_.below(6) > 0) own.color = static_cast<int>(random_.below(2));
      own.key = static_cast<int>(random_.below(5));
    }
    const SplitOptions& own = options[static_cast<std::size_t>(teams_.front().stretto->rank())];
    Team& team = teams_.emplace_back();
    team.stretto = teams_.front().stretto->split(own);
    MPI_Comm_split(MPI_COMM_WORLD, own.color.value_or(MPI_UNDEFINED), own.key, &team.mpi);
  }

  void add(int number) {
    constexpr Collective kCollectives[] = {
        Collective::all_reduce, Collective::reduce,  Collective::reduce_scatter,
        Collective::all_gather, Collective::gather,  Collective::scatter,
        Collective::broadcast,  Collective::barrier, Collective::all_to_all};
    constexpr DType kDtypes[] = {DType::f32, DType::f64, DType::u8,
                                 DType::i8,  DType::i32, DType::i64};
    Team& team = teams_[random_.below(teams_.size())];
    const DType dtype = kDtypes[random_.below(std::size(kDtypes))];
    Draw draw{.collective = kCollectives[random_.below(std::size(kCollectives))],
              .op = static_cast<ReduceOp>(random_.below(kReduceOpCount)),
              .root = 0,
              .counts = {},
              .even = random_.below(2) == 0,
              .in_place = random_.below(2) == 0,
              .seed = random_.next()};
    if (!supports(draw.op, dtype) || !reduces(draw.collective)) draw.op = ReduceOp::sum;
    const auto root = static_cast<int>(random_.below(1000));
    const std::size_t most = random_.below(8) == 0 ? 100000 : 50;
    const auto world_size = static_cast<std::size_t>(teams_.front().stretto->size());
    for (std::size_t i = 0; i < world_size * world_size; ++i) {
      draw.counts.push_back(random_.below(4) == 0 ? 0 : random_.below(most));
      if (draw.even) draw.counts.back() = draw.counts.front();
    }
    if (team.stretto == nullptr) return;
    draw.root = root % team.stretto->size();
    std::string name =
        fmt::format("operation {}: {}({} {}) on {} ranks, root {}, counts {}{}{}", number,
                    stretto::name(draw.collective), stretto::name(draw.op), stretto::name(dtype),
                    team.stretto->size(), draw.root.value(), draw.counts.front(),
                    draw.even ? "" : " and others", draw.in_place ? ", in place" : "");
    in_flight_.emplace_back(std::move(name), make_trial(dtype, team, draw, canary_ && number == 9));
    in_flight_.back().second->run();
  }

  std::string compare() {
    for (const auto& [name, trial] : in_flight_) {
      const std::string difference = trial->difference();
      if (!difference.empty()) {
        return fmt::format("{}: on rank {} of the job {}", name,
                           teams_.front().stretto->rank().value(), difference);
      }
    }
    in_flight_.clear();
    return {};
  }

  Random random_;
  bool canary_;
  std::vector<Team> teams_;
  std::vector<std::pair<std::string, std::unique_ptr<Trial>>> in_flight_;
};

// Returns what went wrong.
std::string run(char** arguments, bool canary) {
  try {
    Program program(std::strtoull(arguments[0], nullptr, 10), std::string("file://") + arguments[1],
                    canary);
    return program.run(std::atoi(arguments[2]));
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace
}  // namespace stretto::testing

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const bool canary = argc == 5 && std::string_view(argv[4]) == "canary";
  if (argc != 4 && !canary) {
    std::fprintf(stderr, "usage: mpirun -n P %s SEED FILE OPERATIONS [canary]\n", argv[0]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const std::string trouble = stretto::testing::run(argv + 1, canary);
  if (!trouble.empty()) {
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    std::fprintf(stderr, "seed %s, %s\nagain: mpirun -n %d %s %s %s %s\n", argv[1], trouble.c_str(),
                 size, argv[0], argv[1], argv[2], argv[3]);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}

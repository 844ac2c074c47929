// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/support/problem.h"

#include <algorithm>
#include <array>
#include <complex>
#include <cstring>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/kernel/reduce_oracle.h"
#include "stretto/schedule/algorithms.h"

namespace stretto::testing {
namespace {

constexpr std::byte kUntouched{0x5a};

// A unit times one of the first `primes` of three Gaussian primes. These are small integers, so
// that sums and products of up to 17 ranks are exact in any order (in f32 too if all are of the
// first prime). No prime occurs together with its conjugate, so no product has a part of zero,
// whose sign would depend on the order.
std::complex<double> small_gaussian(std::size_t number, std::size_t primes) {
  constexpr std::complex<double> kPrimes[] = {{1, 2}, {3, 2}, {4, 1}};
  constexpr std::complex<double> kUnits[] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
  return kPrimes[number % primes] * kUnits[number % 4];
}

// Sums, means and products of up to 17 of these numbers are exact until the last rounding, in any
// order. They are small integers, or a few powers of two for products.
double order_free(std::size_t mixed, ReduceOp op) {
  constexpr std::array kFactors = {1.0, -2.0, 0.5, -1.0, 2.0};
  if (op == ReduceOp::product) return kFactors[mixed % kFactors.size()];
  return static_cast<double>(mixed % 41) - 17;
}

bool is_integer(DType dtype) {
  return !is_floating_point(dtype) && !is_complex(dtype) && dtype != DType::boolean;
}

void fill(View view, int rank, const Problem& problem) {
  const bool any_order = problem.any_order || has_own_order(problem);
  const bool is_product = problem.op == ReduceOp::product;
  for (std::size_t i = 0; i < view.count; ++i) {
    const auto mixed = i * 7 + static_cast<std::size_t>(rank) * 13;
    const double small = 0.37 * static_cast<double>(mixed % 41) - 5;
    const double value = any_order ? order_free(mixed, problem.op) : small;
    std::byte* at = view.data + i * size_bytes(view.dtype);
    if (problem.any_order && is_integer(view.dtype)) {
      // Numbers are so small that nothing overflows, since some libraries saturate bytes.
      const auto number = static_cast<std::int64_t>(mixed % (is_product ? 3 : 17)) -
                          (is_product || view.dtype == DType::u8 ? 0 : 8);
      std::memcpy(at, &number, size_bytes(view.dtype));  // Its lowest bytes.
      continue;
    }
    const auto put = [&](auto number) { std::memcpy(at, &number, sizeof(number)); };
    switch (view.dtype) {
      case DType::f32:
        put(static_cast<float>(value));
        break;
      case DType::f64:
        put(value);
        break;
      case DType::f16:  // Any finite bits will do: the oracle reads the same.
        put(any_order ? Half(static_cast<float>(value)).bits
                      : static_cast<std::uint16_t>(0x3000 + (mixed * 37) % 0x0fff));
        break;
      case DType::bf16:
        put(any_order ? BFloat16(static_cast<float>(value)).bits
                      : static_cast<std::uint16_t>(0x3f00 + (mixed * 37) % 0x00ff));
        break;
      case DType::i32:
        put(static_cast<std::int32_t>(small * 1000));
        break;
      case DType::i64:
        put(static_cast<std::int64_t>(small * 1e9));
        break;
      case DType::boolean:
        put(mixed % 3 != 0);
        break;
      case DType::c64:
        put(std::complex<float>(small_gaussian(mixed, 1)));
        break;
      case DType::c128:
        put(small_gaussian(mixed, 3));
        break;
      default:
        for (std::size_t b = 0; b < size_bytes(view.dtype); ++b) {
          at[b] = static_cast<std::byte>(mixed * 31 + b * 17);
        }
    }
  }
}

// The number of elements after which all inputs repeat, or their length. The reference is slow, and
// need not compute more elements than these.
std::size_t period_of(const std::vector<Bytes>& inputs, std::size_t element_bytes) {
  for (const std::size_t period : {12, 41, 255, 256, 585}) {
    const bool repeat = std::ranges::all_of(inputs, [&](const Bytes& input) {
      const std::size_t bytes = std::min(period * element_bytes, input.size());
      return same_bytes(std::span(input).subspan(bytes),
                        std::span(input).first(input.size() - bytes));
    });
    if (repeat) return period;
  }
  return inputs.front().size() / element_bytes;
}

bool are_equal(const std::vector<std::size_t>& shares) {
  return std::ranges::count(shares, shares.front()) == std::ssize(shares);
}

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

// The number of elements in the shares of lower ranks.
std::size_t begin_of(const Problem& problem, int rank) {
  return sum(std::span(problem.shares).first(static_cast<std::size_t>(rank)));
}

std::size_t share(const Problem& problem, int from, int to) {
  return problem.shares[static_cast<std::size_t>(from * problem.ranks + to)];
}

std::size_t input_elements(const Problem& problem, int rank) {
  switch (problem.collective) {
    case Collective::all_gather:
    case Collective::gather:
      return problem.shares[static_cast<std::size_t>(rank)];
    case Collective::reduce_scatter:
      return sum(problem.shares);
    case Collective::scatter:
      return rank == problem.root.value() ? sum(problem.shares) : 0;
    case Collective::all_to_all: {
      const auto ranks = static_cast<std::size_t>(problem.ranks);
      return sum(std::span(problem.shares).subspan(static_cast<std::size_t>(rank) * ranks, ranks));
    }
    default:
      return problem.count;
  }
}

Bytes part(const Bytes& whole, const Problem& problem, std::size_t first, std::size_t count) {
  const std::size_t element_bytes = size_bytes(problem.dtype);
  const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(first * element_bytes);
  return {begin, begin + static_cast<std::ptrdiff_t>(count * element_bytes)};
}

void append(Bytes& bytes, const Bytes& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

}  // namespace

std::vector<std::pair<DType, ReduceOp>> reductions() {
  std::vector<std::pair<DType, ReduceOp>> list;
  for (int d = 0; d < kDTypeCount; ++d) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const auto dtype = static_cast<DType>(d);
      const auto op = static_cast<ReduceOp>(o);
      if (supports(op, dtype)) list.emplace_back(dtype, op);
    }
  }
  return list;
}

bool has_own_order(const Problem& problem) {
  const schedule::Algorithm* algorithm =
      schedule::find_algorithm(problem.collective, schedule::Access::messages, problem.algorithm);
  return algorithm != nullptr && algorithm->order == schedule::Order::fixed;
}

Problem with_equal_shares(Problem problem, std::size_t share) {
  const auto ranks = static_cast<std::size_t>(problem.ranks);
  const std::size_t shares = problem.collective == Collective::all_to_all ? ranks * ranks : ranks;
  problem.shares.assign(shares, share);
  return problem;
}

std::string describe(const Problem& problem) {
  const std::string size = has_shares(problem.collective)
                               ? fmt::format("shares {}", fmt::join(problem.shares, ","))
                               : fmt::format("count {}", problem.count);
  return fmt::format("{} {} {} on {} ranks, root {}, {}, {}{}{}", name(problem.collective),
                     name(problem.op), name(problem.dtype), problem.ranks, problem.root.value(),
                     size, problem.algorithm.empty() ? "chosen" : problem.algorithm,
                     problem.registered ? ", registered" : "",
                     problem.in_place ? ", in place" : "");
}

Oracle::Oracle(const Problem& problem) : problem_(problem) {
  for (int rank = 0; rank < problem.ranks; ++rank) {
    const std::size_t elements = input_elements(problem, rank);
    Bytes& input = inputs_.emplace_back(elements * size_bytes(problem.dtype));
    fill({input.data(), elements, problem.dtype}, rank, problem);
  }
  if (reduces(problem.collective)) reduced_ = reduced();
}

Bytes Oracle::reduced() const {
  std::vector<kernel::Input> views;
  for (const Bytes& input : inputs_) views.push_back({input.data(), problem_.dtype});
  const std::size_t element_bytes = size_bytes(problem_.dtype);
  const std::size_t elements = inputs_.front().size() / element_bytes;
  const std::size_t period = period_of(inputs_, element_bytes);
  Bytes result =
      kernel::oracle::reduce({.dtype = problem_.dtype,
                              .output_dtype = problem_.dtype,
                              .op = problem_.op,
                              .divisor = problem_.op == ReduceOp::mean ? problem_.ranks : 1,
                              .count = std::min(period, elements),
                              .inputs = views,
                              .outputs = {}});
  result.resize(elements * element_bytes);
  const std::size_t repeated = period * element_bytes;
  for (std::size_t i = repeated; i < result.size(); i += repeated) {
    std::memcpy(result.data() + i, result.data(), std::min(repeated, result.size() - i));
  }
  return result;
}

// Concatenates share `rank` of every rank's input.
Bytes Oracle::exchanged(int rank) const {
  Bytes result;
  for (int from = 0; from < problem_.ranks; ++from) {
    std::size_t first = 0;
    for (int to = 0; to < rank; ++to) first += share(problem_, from, to);
    append(result, part(input_of(from), problem_, first, share(problem_, from, rank)));
  }
  return result;
}

Bytes Oracle::expected_of(int rank) const {
  const bool is_root = rank == problem_.root.value();
  const auto own = static_cast<std::size_t>(rank);
  switch (problem_.collective) {
    case Collective::all_reduce:
      return reduced_;
    case Collective::reduce:
      return is_root ? reduced_ : Bytes();
    case Collective::reduce_scatter:
      return part(reduced_, problem_, begin_of(problem_, rank), problem_.shares[own]);
    case Collective::broadcast:
      return input_of(problem_.root.value());
    case Collective::scatter:
      return part(input_of(problem_.root.value()), problem_, begin_of(problem_, rank),
                  problem_.shares[own]);
    case Collective::all_to_all:
      return exchanged(rank);
    case Collective::gather:
      if (!is_root) return {};
      [[fallthrough]];
    case Collective::all_gather: {
      Bytes all;
      for (int r = 0; r < problem_.ranks; ++r) append(all, input_of(r));
      return all;
    }
    default:
      return {};
  }
}

Trial::Trial(Communicator& comm, const Oracle& oracle)
    : comm_(comm),
      oracle_(oracle),
      problem_(oracle.problem()),
      rank_(comm.rank().value()),
      expected_(oracle.expected_of(rank_)) {
  const Problem& problem = problem_;
  const Bytes& input = oracle.input_of(rank_);
  const Bytes& expected = expected_;
  const bool longer_output = expected.size() >= input.size();
  const bool is_broadcast = problem.collective == Collective::broadcast;
  shared_ = is_broadcast || (problem.in_place && !expected.empty() && !input.empty());
  if (is_broadcast) {
    input_ = output_ = buffer(input);
  } else if (!shared_) {
    input_ = buffer(input);
    // There is room behind the output, so that bytes that must not be touched can be checked even
    // if the output is empty.
    output_ = buffer(Bytes(expected.size() + 64, kUntouched)).first(expected.size());
  } else if (longer_output) {
    output_ = buffer(Bytes(expected.size(), kUntouched));
    input_ = output_.subspan(place_in_longer_buffer(), input.size());
    std::copy(input.begin(), input.end(), input_.begin());
  } else {
    input_ = buffer(input);
    output_ = input_.subspan(place_in_longer_buffer(), expected.size());
  }
}

std::size_t Trial::place_in_longer_buffer() const {
  const bool by_rank =
      has_shares(problem_.collective) && problem_.collective != Collective::all_to_all;
  return by_rank ? begin_of(problem_, rank_) * size_bytes(problem_.dtype) : 0;
}

std::span<std::byte> Trial::buffer(const Bytes& content) {
  std::span<std::byte> bytes;
  if (problem_.registered) {
    registered_.push_back(comm_.allocate_bytes(std::max<std::size_t>(1, content.size())));
    bytes = registered_.back().bytes().first(content.size());
  } else {
    private_.push_back(std::make_unique<Bytes>(content.size()));
    bytes = *private_.back();
  }
  std::copy(content.begin(), content.end(), bytes.begin());
  return bytes;
}

template <class Options>
Options Trial::options() const {
  Options options;
  options.algorithm = problem_.algorithm;
  if constexpr (requires { options.op; }) options.op = problem_.op;
  if constexpr (requires { options.root; }) options.root = problem_.root;
  if constexpr (requires { options.counts; }) {
    // Equal shares need no list, but may have one.
    const auto& shares = problem_.shares;
    if (!are_equal(shares) || shares.front() % 2 == 0) options.counts = shares;
  }
  return options;
}

std::vector<std::size_t> Trial::row(bool sends) const {
  std::vector<std::size_t> counts;
  for (int other = 0; other < problem_.ranks; ++other) {
    counts.push_back(sends ? share(problem_, rank_, other) : share(problem_, other, rank_));
  }
  return counts;
}

Work Trial::start() {
  const std::size_t element_bytes = size_bytes(problem_.dtype);
  const ConstView input(input_.data(), input_.size() / element_bytes, problem_.dtype);
  const View output(output_.data(), output_.size() / element_bytes, problem_.dtype);
  switch (problem_.collective) {
    case Collective::all_reduce:
      return comm_.all_reduce(input, output, options<AllReduceOptions>());
    case Collective::reduce:
      return comm_.reduce(input, output, options<ReduceOptions>());
    case Collective::reduce_scatter:
      return comm_.reduce_scatter(input, output, options<ReduceScatterOptions>());
    case Collective::all_gather:
      return comm_.all_gather(input, output, options<AllGatherOptions>());
    case Collective::gather:
      return comm_.gather(input, output, options<GatherOptions>());
    case Collective::scatter:
      return comm_.scatter(input, output, options<ScatterOptions>());
    case Collective::broadcast:
      return comm_.broadcast(output, options<BroadcastOptions>());
    case Collective::all_to_all: {
      auto all_to_all = options<AllToAllOptions>();
      if (!are_equal(problem_.shares)) {
        all_to_all.send_counts = row(true);
        all_to_all.recv_counts = row(false);
      }
      return comm_.all_to_all(input, output, all_to_all);
    }
    default:
      return comm_.barrier(options<BarrierOptions>());
  }
}

std::string Trial::failure_of_input() const {
  const Bytes& input = oracle_.input_of(rank_);
  if (same_bytes(input_, input)) return {};
  // In place, input bytes that the output does not cover must not be written.
  for (std::size_t i = 0; i < input.size(); ++i) {
    const std::byte* at = input_.data() + i;
    const bool is_output = at >= output_.data() && at < output_.data() + output_.size();
    if (!is_output && *at != input[i]) {
      return fmt::format("byte {} of the input of rank {} was changed", i, rank_);
    }
  }
  return {};
}

std::string Trial::failure() const {
  if (!same_bytes(output_, expected_)) {
    return fmt::format("rank {} has another result", rank_);
  }
  if (std::string text = failure_of_input(); !text.empty() || shared_) return text;
  const std::span<const std::byte> behind(output_.data() + output_.size(), 64);
  if (std::ranges::any_of(behind, [](std::byte b) { return b != kUntouched; })) {
    return fmt::format("something was written behind the output of rank {}", rank_);
  }
  return {};
}

std::string try_on_all(std::span<const std::unique_ptr<Communicator>> ranks,
                       const Problem& problem) {
  const Oracle oracle(problem);
  std::vector<std::unique_ptr<Trial>> trials;
  std::vector<Work> works;
  for (const auto& comm : ranks) trials.push_back(std::make_unique<Trial>(*comm, oracle));
  for (const auto& trial : trials) works.push_back(trial->start());
  for (std::size_t left = works.size(); left > 0;) {
    left = 0;
    for (Work& work : works) left += work.done() ? 0 : 1;
  }
  for (Work& work : works) work.wait();
  for (const auto& trial : trials) {
    const std::string failure = trial->failure();
    if (!failure.empty()) return describe(problem) + ": " + failure;
  }
  return {};
}

}  // namespace stretto::testing

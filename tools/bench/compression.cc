// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/rank_program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "stretto/base/random.h"
#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/power_sgd.h"
#include "stretto/reducer/reducer.h"
#include "stretto/stretto.h"
#include "tools/bench/statistics.h"

namespace stretto::bench {
namespace {

// Rounds that are counted, after one that is not: as many as fit into the time, within these.
constexpr double kSeconds = 2;
constexpr double kFewest = 5, kMost = 100;
// Compression::automatic tries no longer.
constexpr int kTrialSteps = 16;
// Steps in turns with those without, once it has decided against compression: what a busy machine
// adds to the shortest of so many is little.
constexpr double kDuelSeconds = 10;
constexpr double kDuelRounds = 200;

using Hook = std::shared_ptr<CommunicationHook>;

// Of a Laplace distribution, which gradients resemble.
std::vector<float> gradient_of(std::size_t count, int rank) {
  Random random(static_cast<std::uint64_t>(rank) + 1);
  std::vector<float> values(count);
  for (float& value : values) {
    const double sign = random.below(2) == 0 ? -1 : 1;
    value = static_cast<float>(sign * std::log(1 - random.uniform()));
  }
  return values;
}

// Steps of one codec with a gradient of its own.
class Contestant {
 public:
  Contestant(Communicator& comm, std::string name, Hook hook, std::size_t count)
      : comm_(comm),
        name_(std::move(name)),
        hook_(std::move(hook)),
        reducer_(comm, {description(count)}, {.rebuild_buckets = false, .hook = hook_}) {}

  void step(std::span<const float> gradient, bool counted, bool of_duel = false) {
    std::memcpy(reducer_.gradient_bytes(0).data(), gradient.data(), gradient.size_bytes());
    comm_.barrier().wait();
    const TimePoint begin = Clock::now();
    reducer_.mark_ready(0);
    reducer_.finalize();
    const double step_s = seconds(Clock::now() - begin);
    if (of_duel) least_s_ = std::min(least_s_, step_s);
    if (!counted) return;
    step_s_.push_back(step_s);
    if (const CompressionStatistics* const last = statistics()) {
      codec_s_.push_back(last->encode_seconds + last->decode_seconds);
    }
  }

  // Until a codec that is tried has been decided upon.
  void settle(std::span<const float> gradient) {
    for (int i = 0; i < kTrialSteps && name_.ends_with("automatic"); ++i) step(gradient, false);
  }

  const std::string& name() const { return name_; }
  // Who adds up what, and why; empty where there is no choice.
  std::string exchange() const {
    const auto* const compressed = dynamic_cast<const CompressedReduction*>(hook_.get());
    return compressed == nullptr ? "" : compressed->exchange_reason();
  }
  // Whether it has decided against compression; the same on all ranks.
  bool is_off() const {
    return name_.ends_with("automatic") && statistics() != nullptr && !statistics()->compressed;
  }
  // Of the slowest rank; collective.
  double step_seconds() const { return slowest(median(step_s_)); }
  // The shortest of the steps in turns with one other contestant, of the slowest rank; collective.
  double least_seconds() const { return slowest(least_s_); }
  // Encoding and decoding; NaN where the hook does not say. Collective.
  double codec_seconds() const { return slowest(median(codec_s_)); }
  // Bytes that a rank receives, of those of the gradient; NaN where the hook does not say.
  double share() const {
    const CompressionStatistics* const last = statistics();
    if (last == nullptr) return std::nan("");
    return static_cast<double>(last->received_bytes) / static_cast<double>(last->gradient_bytes);
  }

 private:
  // A square matrix, nearly.
  static GradientDescription description(std::size_t count) {
    std::size_t rows = static_cast<std::size_t>(std::sqrt(static_cast<double>(count)));
    while (rows > 1 && count % rows != 0) --rows;
    return {.name = "gradient", .dtype = DType::f32, .count = count, .rows = rows};
  }
  const CompressionStatistics* statistics() const {
    const auto* const compressed = dynamic_cast<const CompressedReduction*>(hook_.get());
    return compressed == nullptr ? nullptr : &compressed->last_step();
  }
  double slowest(double value) const {
    comm_.all_reduce(std::span<double>(&value, 1), {.op = ReduceOp::max}).wait();
    return value;
  }

  Communicator& comm_;
  const std::string name_;
  const Hook hook_;
  Reducer reducer_;
  std::vector<double> step_s_;
  std::vector<double> codec_s_;
  double least_s_ = std::numeric_limits<double>::infinity();
};

// The first is what the others are compared with.
std::vector<std::unique_ptr<Contestant>> contestants(Communicator& comm, std::size_t count) {
  std::vector<std::unique_ptr<Contestant>> all;
  const auto add = [&](const std::string& name, const Hook& hook) {
    all.push_back(std::make_unique<Contestant>(comm, name, hook, count));
  };
  add("as they are", std::make_shared<PlainReduction>());
  add("f16", std::make_shared<F16Reduction>());
  add("bf16", std::make_shared<Bf16Reduction>());
  for (const auto& codec : {int8(), one_bit(), random_k(), top_k({.density = 0.01}),
                            top_k({.density = 0.01, .values = ValueFormat::bf16}),
                            top_k({.density = 0.001, .values = ValueFormat::bf16})}) {
    add(codec->name(), std::make_shared<CompressedReduction>(
                           CompressionOptions{.codec = codec, .min_elements = 1}));
  }
  add("top_k(0.01), automatic", std::make_shared<CompressedReduction>(
                                    CompressionOptions{.min_elements = 1,
                                                       .exchange = CompressedExchange::automatic,
                                                       .compression = Compression::automatic}));
  if (comm.size() > 2) {
    add("top_k(0.01), divided",
        std::make_shared<CompressedReduction>(CompressionOptions{
            .codec = top_k(), .min_elements = 1, .exchange = CompressedExchange::divide}));
  }
  for (const std::size_t rank : {2u, 4u}) {
    add(fmt::format("PowerSGD rank {}", rank),
        std::make_shared<PowerSgdReduction>(PowerSgdOptions{.rank = rank, .min_elements = 1}));
  }
  return all;
}

// Steps of `automatic` that do not compress, in turns with steps as they are.
struct Duel {
  int rounds = 0;    // 0: there was none.
  double ratio = 0;  // Of the shortest steps.
};

Duel duel(Communicator& comm, std::span<const float> gradient, Contestant& dense,
          Contestant& other) {
  if (!other.is_off()) return {};
  double rounds = std::clamp(kDuelSeconds / 2 / dense.step_seconds(), 1.0, kDuelRounds);
  comm.broadcast(std::span<double>(&rounds, 1)).wait();
  const Duel result{.rounds = static_cast<int>(rounds)};
  for (int round = 0; round < result.rounds; ++round) {
    // Each comes first as often as the other.
    (round % 2 == 0 ? dense : other).step(gradient, false, true);
    (round % 2 == 0 ? other : dense).step(gradient, false, true);
  }
  return {.rounds = result.rounds, .ratio = other.least_seconds() / dense.least_seconds()};
}

// What was found out about one codec.
struct Finding {
  std::string codec;
  double step_s = 0;
  double dense_s = 0;
  double share = 0;      // NaN: not known, and so are the next two.
  double codec_s = 0;    // Encoding and decoding.
  std::string exchange;  // Empty: there is no choice.
  Duel duel;
  double pays_below_s = 0;  // Bits a second that a rank receives.
};

// The rate at which the bytes that are saved take as long as encoding and decoding. Where codecs
// send more than all of it, none.
double crossover(const Finding& finding, std::size_t bytes, int ranks) {
  const double others = ranks - 1;
  const double saved = 2 * others / ranks - finding.share;  // NaN if not known.
  return saved < 0 ? 0 : 8 * static_cast<double>(bytes) * saved / finding.codec_s;
}

std::string number(double value, double unit, const char* suffix) {
  return std::isnan(value) ? "-" : fmt::format("{:.3g}{}", value * unit, suffix);
}

void print(const Finding& finding, std::size_t bytes, const Communicator& comm, bool json) {
  const double speed_up = finding.dense_s / finding.step_s;
  if (json) {
    nlohmann::json line = {
        {"codec", finding.codec},         {"ranks", comm.size()},        {"bytes", bytes},
        {"step_s", finding.step_s},       {"dense_s", finding.dense_s},  {"speed_up", speed_up},
        {"links", comm.describe_links()}, {"exchange", finding.exchange}};
    if (finding.duel.rounds > 0) {
      line["duel_rounds"] = finding.duel.rounds;
      line["shortest_of_shortest_dense"] = finding.duel.ratio;
    }
    if (!std::isnan(finding.share)) {
      line["share"] = finding.share;
      line["codec_s"] = finding.codec_s;
      line["pays_below_bits_per_s"] = finding.pays_below_s;
    }
    fmt::print("{}\n", line.dump());
  } else {
    fmt::print("  {:<26} {:>9} {:>8} {:>9} {:>12}   {}\n", finding.codec,
               number(finding.step_s, 1e3, ""), number(finding.share, 100, " %"),
               number(finding.codec_s, 1e3, ""), number(finding.pays_below_s, 1e-9, ""),
               finding.step_s < finding.dense_s
                   ? fmt::format("pays: {:.2f} times as fast", speed_up)
                   : fmt::format("{:.2f} times as fast", speed_up));
    if (finding.duel.rounds > 0) {
      fmt::print(
          "  {:<26} off; the shortest of {} steps in turns is {:.3f} times that as they are\n", "",
          finding.duel.rounds, finding.duel.ratio);
    }
    if (finding.codec.ends_with("automatic")) {
      fmt::print("  {:<26} messages are {}\n", "", finding.exchange);
    }
  }
  (void)std::fflush(stdout);
}

void measure(Communicator& comm, std::size_t bytes, bool json) {
  const std::size_t count = bytes / sizeof(float);
  const std::vector<float> gradient = gradient_of(count, comm.rank().value());
  const auto all = contestants(comm, count);
  const TimePoint begin = Clock::now();
  for (const auto& contestant : all) contestant->step(gradient, false);
  double rounds = std::clamp(kSeconds / seconds(Clock::now() - begin), kFewest, kMost);
  comm.broadcast(std::span<double>(&rounds, 1)).wait();
  for (const auto& contestant : all) contestant->settle(gradient);
  // In another order each round, the same on all ranks: what comes before a step slows it down.
  Random random(1);
  std::vector<Contestant*> order;
  for (const auto& contestant : all) order.push_back(contestant.get());
  for (std::size_t round = 0; static_cast<double>(round) < rounds; ++round) {
    for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[random.below(i + 1)]);
    for (Contestant* const contestant : order) contestant->step(gradient, true);
  }
  const double dense_s = all.front()->step_seconds();
  const double wire_bits = 16 * static_cast<double>(bytes) * (comm.size() - 1) / comm.size();
  if (comm.rank() == 0 && !json) {
    fmt::print("\ngradients of {}: the all_reduce brings each rank {:.3g} Gbit/s\n",
               format_bytes(bytes), wire_bits / dense_s * 1e-9);
    fmt::print("  {:<26} {:>9} {:>8} {:>9} {:>12}\n", "codec", "step ms", "received", "codec ms",
               "pays below");
  }
  for (const auto& contestant : all) {
    Finding finding{.codec = contestant->name(),
                    .step_s = contestant->step_seconds(),
                    .dense_s = dense_s,
                    .share = contestant->share(),
                    .codec_s = contestant->codec_seconds(),
                    .exchange = contestant->exchange(),
                    .duel = duel(comm, gradient, *all.front(), *contestant)};
    finding.pays_below_s = crossover(finding, bytes, comm.size());
    if (comm.rank() == 0) print(finding, bytes, comm, json);
  }
}

}  // namespace

int run_compressing_rank(const BenchOptions& options) {
  const auto comm = join({.disable_shared_memory = options.transport == "tcp"});
  std::vector<std::size_t> sizes = options.bytes;
  if (sizes.empty()) sizes = {std::size_t{1} << 20, std::size_t{25} << 20};
  if (comm->rank() == 0 && !options.json) {
    fmt::print(
        "{} ranks: {}. Steps of one gradient, by the slowest rank; in turns. \"pays below\": "
        "Gbit/s that a rank receives.\n",
        comm->size(), comm->describe_links());
  }
  for (const std::size_t bytes : sizes)
    measure(*comm, std::max(bytes, sizeof(float)), options.json);
  comm->barrier().wait();
  return 0;
}

}  // namespace stretto::bench

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/rank_program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "stretto/base/random.h"
#include "stretto/reducer/compressed_reduction.h"
#include "stretto/reducer/reducer.h"
#include "stretto/reducer/two_level_reduction.h"
#include "stretto/stretto.h"
#include "tools/bench/statistics.h"

namespace stretto::bench {
namespace {

// A codec is measured by pairs of a step with it and a step without, after one pair that is not
// counted: as many pairs as fit into kSeconds, within these limits.
constexpr double kSeconds = 6;
constexpr double kFewest = 6, kMost = 100;
// Compression::automatic decides within this many steps. When it has switched itself off, its steps
// differ by at most a few percent from those without a codec, which takes more pairs to see.
constexpr int kTrialSteps = 16;
constexpr double kSecondsOff = 10;
constexpr double kMostOff = 400;

using Hook = std::shared_ptr<CommunicationHook>;

// Returns numbers of a Laplace distribution, which gradients resemble.
std::vector<float> gradient_of(std::size_t count, int rank) {
  Random random(static_cast<std::uint64_t>(rank) + 1);
  std::vector<float> values(count);
  for (float& value : values) {
    const double sign = random.below(2) == 0 ? -1 : 1;
    value = static_cast<float>(sign * std::log(1 - random.uniform()));
  }
  return values;
}

// Seconds of steps with and without the codec, pair by pair.
struct Pairs {
  std::vector<double> step_s;
  std::vector<double> dense_s;

  // How many times as fast steps with the codec are; see median_interval().
  Interval speed_up() const {
    std::vector<double> ratios(step_s.size());
    std::transform(dense_s.begin(), dense_s.end(), step_s.begin(), ratios.begin(),
                   std::divides<>());
    return median_interval(ratios);
  }
};

// Describes the gradient as a matrix that is as square as `count` allows.
GradientDescription description(std::size_t count) {
  std::size_t rows = static_cast<std::size_t>(std::sqrt(static_cast<double>(count)));
  while (rows > 1 && count % rows != 0) --rows;
  return {.name = "gradient", .dtype = DType::f32, .count = count, .rows = rows};
}

// The codecs that are not measured as hooks of their own.
std::vector<std::shared_ptr<const Codec>> codecs() {
  return {int8(), one_bit(), top_k({.density = 0.01}),
          top_k({.density = 0.01, .values = ValueFormat::bf16}),
          top_k({.density = 0.001, .values = ValueFormat::bf16})};
}

// Runs steps of one codec, with a reducer and a gradient of its own.
class Contestant {
 public:
  Contestant(Communicator& comm, std::string name, Hook hook, std::size_t count)
      : comm_(comm),
        name_(std::move(name)),
        hook_(std::move(hook)),
        reducer_(comm, {description(count)}, {.rebuild_buckets = false, .hook = hook_}) {}

  // Returns the seconds of one step.
  double step(std::span<const float> gradient) {
    std::memcpy(reducer_.gradient_bytes(0).data(), gradient.data(), gradient.size_bytes());
    comm_.barrier().wait();
    const TimePoint begin = Clock::now();
    reducer_.mark_ready(0);
    reducer_.finalize();
    return seconds(Clock::now() - begin);
  }

  // Runs a step, and one of `dense` (without a codec) right before or after it, so that both see
  // the same load on the machine. Each comes first equally often.
  void run_pair(std::span<const float> gradient, Contestant& dense) {
    const bool dense_first = step_s_.size() % 2 == 0;
    double dense_s = dense_first ? dense.step(gradient) : 0;
    step_s_.push_back(step(gradient));
    if (!dense_first) dense_s = dense.step(gradient);
    dense_s_.push_back(dense_s);
    dense.step_s_.push_back(dense_s);
    dense.dense_s_.push_back(dense_s);
    if (const CompressionStatistics* const last = statistics()) {
      codec_s_.push_back(last->encode_seconds + last->decode_seconds);
    }
  }

  // Runs steps until Compression::automatic has decided.
  void settle(std::span<const float> gradient) {
    for (int i = 0; i < kTrialSteps && name_.ends_with("automatic"); ++i) (void)step(gradient);
  }

  const std::string& name() const { return name_; }
  // Which rank adds up what, and why; empty if there is no choice.
  std::string exchange() const {
    const auto* const compressed = dynamic_cast<const CompressedReduction*>(hook_->inner());
    return compressed == nullptr ? "" : compressed->exchange_reason();
  }
  // Whether Compression::automatic has decided against compression, at least for rank 0's part of
  // the gradients. Collective.
  bool is_off() const {
    if (!name_.ends_with("automatic")) return false;
    std::uint8_t is_off = statistics()->compressed ? 0 : 1;
    comm_.broadcast(std::span(&is_off, 1)).wait();
    return is_off != 0;
  }
  // The seconds of the slowest rank in each step, with and without the codec. Collective.
  Pairs pairs() const { return {slowest(step_s_), slowest(dense_s_)}; }
  // The seconds of encoding and decoding; NaN if the hook does not tell. Collective.
  double codec_seconds() const { return slowest({median(codec_s_)}).front(); }
  // The bytes that a rank receives, as a share of the gradient's; NaN if the hook does not tell.
  double share() const {
    const CompressionStatistics* const last = statistics();
    if (last == nullptr) return std::nan("");
    return static_cast<double>(last->received_bytes) / static_cast<double>(last->gradient_bytes);
  }

 private:
  const CompressionStatistics* statistics() const { return hook_->last_compression(); }
  std::vector<double> slowest(std::vector<double> values) const {
    comm_.all_reduce(std::span<double>(values), {.op = ReduceOp::max}).wait();
    return values;
  }

  Communicator& comm_;
  const std::string name_;
  const Hook hook_;
  Reducer reducer_;
  std::vector<double> step_s_;
  std::vector<double> dense_s_;
  std::vector<double> codec_s_;
};

// The contestants; the first, without a codec, is what the others are compared with.
std::vector<std::unique_ptr<Contestant>> contestants(Communicator& comm, std::size_t count) {
  std::vector<std::unique_ptr<Contestant>> all;
  const auto add = [&](const std::string& name, const Hook& hook) {
    all.push_back(std::make_unique<Contestant>(comm, name, hook, count));
  };
  add("as they are", std::make_shared<PlainReduction>());
  add("f16", std::make_shared<TwoLevelReduction>(std::make_shared<F16Reduction>()));
  add("bf16", std::make_shared<TwoLevelReduction>(std::make_shared<Bf16Reduction>()));
  // As the option `codec` of DistributedDataParallel does.
  const auto add_compressed = [&](const std::string& name, CompressionOptions options) {
    options.min_elements = 1;
    add(name, std::make_shared<TwoLevelReduction>(
                  std::make_shared<CompressedReduction>(std::move(options))));
  };
  for (const auto& codec : codecs()) add_compressed(codec->name(), {.codec = codec});
  add_compressed("top_k(0.01), automatic", {.exchange = CompressedExchange::automatic,
                                            .compression = Compression::automatic});
  if (comm.size() > 2) {
    add_compressed("top_k(0.01), divided", {.exchange = CompressedExchange::divide});
  }
  for (const std::size_t rank : {2u, 4u}) {
    add_compressed(fmt::format("PowerSGD rank {}", rank), {.codec = power_sgd({.rank = rank})});
  }
  return all;
}

// What was found out about one codec.
struct Finding {
  std::string codec;
  Pairs pairs;
  double share = 0;         // See Contestant::share(); if NaN, the next two are NaN too.
  double codec_s = 0;       // Seconds of encoding and decoding.
  double pays_below_s = 0;  // In bits per second that a rank receives.
  std::string exchange;     // See Contestant::exchange().
  bool is_off = false;      // `automatic` has decided against compression.
};

// The bit rate at which the saved bytes take as long as encoding and decoding; 0 if the codec saves
// none. `receivers`: the number of hosts, if the ranks of a host add up first, or of ranks.
double crossover(const Finding& finding, std::size_t bytes, int receivers) {
  const double others = receivers - 1;
  const double saved = 2 * others / receivers - finding.share;  // NaN if not known.
  return saved < 0 ? 0 : 8 * static_cast<double>(bytes) * saved / finding.codec_s;
}

std::string number(double value, double unit, const char* suffix) {
  return std::isnan(value) ? "-" : fmt::format("{:.3g}{}", value * unit, suffix);
}

void print_json(const Finding& finding, std::size_t bytes, const Communicator& comm) {
  const Interval speed_up = finding.pairs.speed_up();
  nlohmann::json line = {{"codec", finding.codec},
                         {"ranks", comm.size()},
                         {"bytes", bytes},
                         {"step_s", median(finding.pairs.step_s)},
                         {"dense_s", median(finding.pairs.dense_s)},
                         {"pairs", finding.pairs.step_s.size()},
                         {"speed_up", speed_up.median},
                         {"speed_up_low", speed_up.low},
                         {"speed_up_high", speed_up.high},
                         {"links", comm.describe_links()},
                         {"exchange", finding.exchange},
                         {"off", finding.is_off}};
  if (!std::isnan(finding.share)) {
    line["share"] = finding.share;
    line["codec_s"] = finding.codec_s;
    line["pays_below_bits_per_s"] = finding.pays_below_s;
  }
  fmt::print("{}\n", line.dump());
}

void print_line(const Finding& finding) {
  const Interval speed_up = finding.pairs.speed_up();
  const char* const verdict = speed_up.low > 1 && !finding.is_off ? "pays: " : "";
  const bool is_told = speed_up.low > 1 || speed_up.high < 1 || speed_up.low == speed_up.high;
  fmt::print("  {:<26} {:>9} {:>8} {:>9} {:>12}   {}{:.2f} times as fast ({:.2f} to {:.2f}){}\n",
             finding.codec, number(median(finding.pairs.step_s), 1e3, ""),
             number(finding.share, 100, " %"), number(finding.codec_s, 1e3, ""),
             number(finding.pays_below_s, 1e-9, ""), verdict, speed_up.median, speed_up.low,
             speed_up.high, is_told ? "" : ": no difference was found");
  if (!finding.codec.ends_with("automatic")) return;
  fmt::print("  {:<26} {} messages are {}\n", "",
             finding.is_off ? "has switched itself off;" : "is on;", finding.exchange);
}

// How many rounds of `pair_seconds` rank 0 fits into `in_seconds`; the same on all ranks.
int agreed_rounds(Communicator& comm, double in_seconds, double pair_seconds, double most) {
  double rounds = std::clamp(in_seconds / pair_seconds, kFewest, most);
  comm.broadcast(std::span<double>(&rounds, 1)).wait();
  return static_cast<int>(rounds);
}

void run_pairs(Communicator& comm, std::span<const float> gradient,
               const std::vector<std::unique_ptr<Contestant>>& all) {
  Contestant& dense = *all.front();
  std::vector<Contestant*> order;
  for (const auto& contestant : all) (void)contestant->step(gradient);
  const TimePoint begin = Clock::now();
  for (const auto& contestant : std::span(all).subspan(1)) {
    (void)dense.step(gradient);
    (void)contestant->step(gradient);
    order.push_back(contestant.get());
  }
  const int rounds = agreed_rounds(comm, kSeconds, seconds(Clock::now() - begin), kMost);
  for (const auto& contestant : all) contestant->settle(gradient);
  // The order changes each round, because a step is slowed by what runs before it. It is the same
  // on all ranks.
  Random random(1);
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[random.below(i + 1)]);
    for (Contestant* const contestant : order) contestant->run_pair(gradient, dense);
  }
  for (Contestant* const contestant : order) {
    if (!contestant->is_off()) continue;
    const double pair_s = 2 * median(dense.pairs().step_s);
    const int more = agreed_rounds(comm, kSecondsOff, pair_s, kMostOff);
    for (int round = 0; round < more; ++round) contestant->run_pair(gradient, dense);
  }
}

void measure(Communicator& comm, std::size_t bytes, bool json) {
  const std::size_t count = bytes / sizeof(float);
  const std::vector<float> gradient = gradient_of(count, comm.rank().value());
  const auto all = contestants(comm, count);
  run_pairs(comm, gradient, all);
  const double dense_s = median(all.front()->pairs().step_s);
  const double wire_bits = 16 * static_cast<double>(bytes) * (comm.size() - 1) / comm.size();
  if (comm.rank() == 0 && !json) {
    fmt::print("\ngradients of {}: the all_reduce brings each rank {:.3g} Gbit/s\n",
               format_bytes(bytes), wire_bits / dense_s * 1e-9);
    fmt::print("  {:<26} {:>9} {:>8} {:>9} {:>12}\n", "codec", "step ms", "received", "codec ms",
               "pays below");
  }
  const int hosts = std::ranges::max(comm.hosts()) + 1;
  const int receivers = hosts > 1 ? hosts : comm.size();
  for (const auto& contestant : all) {
    Finding finding{.codec = contestant->name(),
                    .pairs = contestant->pairs(),
                    .share = contestant->share(),
                    .codec_s = contestant->codec_seconds(),
                    .exchange = contestant->exchange(),
                    .is_off = contestant->is_off()};
    finding.pays_below_s = crossover(finding, bytes, receivers);
    if (comm.rank() != 0) continue;
    json ? print_json(finding, bytes, comm) : print_line(finding);
    (void)std::fflush(stdout);
  }
}

std::vector<std::size_t> gradient_sizes(const BenchOptions& options) {
  std::vector<std::size_t> sizes = options.bytes;
  if (sizes.empty()) sizes = {std::size_t{1} << 20, std::size_t{25} << 20};
  for (std::size_t& bytes : sizes) bytes = std::max(bytes, sizeof(float));
  return sizes;
}

// Prints what the model of the links predicts for one codec, in seconds; NaN if it predicts
// nothing.
void explain_codec(Communicator& comm, const std::shared_ptr<const Codec>& codec, std::size_t bytes,
                   double dense_s, bool json) {
  const auto compressed = std::make_shared<CompressedReduction>(CompressionOptions{
      .codec = codec, .min_elements = 1, .exchange = CompressedExchange::automatic});
  const GradientDescription gradient = description(bytes / sizeof(float));
  TwoLevelReduction(compressed).attach(comm, {&gradient, 1});
  if (comm.rank() != 0) return;
  const ExchangePrediction& prediction = compressed->exchange_prediction();
  const std::string& reason = compressed->exchange_reason();
  if (json) {
    fmt::print("{}\n", nlohmann::json{{"codec", codec->name()},
                                      {"ranks", comm.size()},
                                      {"bytes", bytes},
                                      {"message_bytes", prediction.message_bytes},
                                      {"dense_s", dense_s},
                                      {"gathered_s", prediction.gathered_seconds},
                                      {"divided_s", prediction.divided_seconds},
                                      {"combined_s", prediction.combined_seconds},
                                      {"exchange", reason}}
                           .dump());
    return;
  }
  // For messages without a fixed length, nothing but the reason is known beforehand.
  const std::size_t length = prediction.message_bytes;
  fmt::print("  {:<26} {:>9} {:>9} {:>9} {:>9} {:>9}   {}\n", codec->name(),
             length > 0 ? std::to_string(length) : "-", number(dense_s, 1e3, ""),
             number(prediction.gathered_seconds, 1e3, ""),
             number(prediction.divided_seconds, 1e3, ""),
             number(prediction.combined_seconds, 1e3, ""), reason.substr(0, reason.find(':')));
}

void explain(Communicator& comm, std::size_t bytes, bool json) {
  const auto candidates =
      comm.explain(Collective::all_reduce, DType::f32, bytes / sizeof(float)).candidates;
  const double dense_s = candidates.empty() ? std::nan("") : candidates.front().seconds;
  if (comm.rank() == 0 && !json) {
    fmt::print("\ngradients of {}, predicted ms without what encoding and decoding take\n",
               format_bytes(bytes));
    fmt::print("  {:<26} {:>9} {:>9} {:>9} {:>9} {:>9}   {}\n", "codec", "message B", "as is",
               "gathered", "divided", "combined", "messages are");
    if (candidates.empty()) fmt::print("  (-: there is no model of these links)\n");
  }
  for (const auto& codec : {f16(), bf16(), top_k({.exact = false})}) {
    explain_codec(comm, codec, bytes, dense_s, json);
  }
  for (const auto& codec : codecs()) explain_codec(comm, codec, bytes, dense_s, json);
}

}  // namespace

int run_explaining_compression(const BenchOptions& options) {
  const auto comm = join_by(options);
  if (comm->rank() == 0 && !options.json) {
    const std::string model = comm->explain(Collective::all_reduce, DType::f32, 1).links;
    fmt::print("{} ranks: {}\nlinks: {}\n", comm->size(), comm->describe_links(), model);
  }
  for (const std::size_t bytes : gradient_sizes(options)) explain(*comm, bytes, options.json);
  comm->barrier().wait();
  return 0;
}

int run_compressing_rank(const BenchOptions& options) {
  const auto comm = join_by(options);
  if (comm->rank() == 0 && !options.json) {
    fmt::print(
        "{} ranks: {}. Steps of one gradient, by the slowest rank. \"times as fast\": the median "
        "of pairs of a step as it is and one with the codec, and where it lies with odds of 95 %; "
        "\"pays below\": Gbit/s that a rank, or a host of several, receives.\n",
        comm->size(), comm->describe_links());
  }
  for (const std::size_t bytes : gradient_sizes(options)) measure(*comm, bytes, options.json);
  comm->barrier().wait();
  return 0;
}

}  // namespace stretto::bench

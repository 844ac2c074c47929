// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// How messages of CompressedReduction travel: what options ask for, what the model of the links
// predicts, and what announced lengths decide.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <fmt/format.h>

#include "stretto/base/log.h"
#include "stretto/reducer/agreement.h"
#include "stretto/reducer/compressed_exchange.h"
#include "stretto/reducer/compression_trial.h"

namespace stretto {
namespace {

constexpr std::uint64_t kAfterWarmUp = std::numeric_limits<std::uint64_t>::max();
constexpr double kNever = std::numeric_limits<double>::infinity();

// Length of sums of sparse messages of `bytes`, if ranks choose elements independently.
std::size_t sum_bytes(std::size_t bytes, std::size_t gradient_bytes, int ranks) {
  const auto whole = static_cast<double>(gradient_bytes);
  const double left_out = 1 - std::min(1.0, static_cast<double>(bytes) / whole);
  return static_cast<std::size_t>((1 - std::pow(left_out, ranks)) * whole);
}

// Length of the messages of all parts of a gradient. Parts differ by one element at most.
std::size_t parts_bytes(const Codec& codec, std::size_t count, std::size_t ranks,
                        std::uint64_t step) {
  const auto of = [&](std::size_t elements) { return *codec.message_bytes(elements, step); };
  if (!are_worth_parts(count, ranks)) return of(count);
  const std::size_t longer = count % ranks;
  return longer * of(count / ranks + 1) + (ranks - longer) * of(count / ranks);
}

// Seconds that the model of the links predicts; NaN if it predicts nothing.
class Prediction {
 public:
  explicit Prediction(const Communicator& communicator)
      : communicator_(communicator), ranks_(static_cast<std::size_t>(communicator.size())) {}

  // Gathering messages of `bytes` from each rank.
  double gathered(std::size_t bytes) const { return of(Collective::all_gather, ranks_ * bytes); }
  // Dividing; the messages of all parts have `bytes` together.
  double divided(std::size_t bytes) const {
    return of(Collective::all_to_all, bytes) + of(Collective::all_gather, bytes);
  }
  double combined(std::size_t bytes, std::size_t sum_bytes) const {
    constexpr std::size_t kAnnouncementBytes = 16;
    return of(Collective::all_to_all, bytes) +
           of(Collective::all_gather, ranks_ * kAnnouncementBytes) +
           of(Collective::all_gather, sum_bytes);
  }

 private:
  // Interpolates between the model's times for two powers of two.
  double of(Collective collective, std::size_t bytes) const {
    const auto at = [&](std::size_t size) {
      const auto candidates = communicator_.explain(collective, DType::u8, size).candidates;
      return candidates.empty() || size == 0 ? std::numeric_limits<double>::quiet_NaN()
                                             : candidates.front().seconds;
    };
    const std::size_t below = std::bit_floor(bytes), above = std::bit_ceil(bytes);
    if (below == bytes) return at(bytes);
    const double part = static_cast<double>(bytes - below) / static_cast<double>(above - below);
    return at(below) * (1 - part) + at(above) * part;
  }

  const Communicator& communicator_;
  const std::size_t ranks_;
};

// The least number of bytes of one rank's messages from which on `saved_seconds(bytes)` is
// positive; NaN if the model predicts nothing.
template <class Seconds>
double pays_from(std::size_t gradient_bytes, const Seconds& saved_seconds) {
  double from = std::numeric_limits<double>::quiet_NaN();
  for (int shift = 0; shift <= 12 && gradient_bytes >> shift > 0; ++shift) {
    const std::size_t bytes = gradient_bytes >> shift;
    const double saved = saved_seconds(bytes);
    if (std::isnan(saved)) break;
    if (shift == 0) from = kNever;
    if (saved <= 0) break;
    from = static_cast<double>(bytes);
  }
  return from;
}

}  // namespace

// What predict_exchange() broadcasts: seconds gathered, divided and combined; number of bytes from
// which on combining pays.
std::array<double, 4> CompressedReduction::predictions(const Communicator& communicator,
                                                       const Bytes& bytes) const {
  const Prediction prediction(communicator);
  const auto saved_by_combining = [&](std::size_t each) {
    const std::size_t sums = sum_bytes(each, bytes.without_fixed_length, ranks_);
    return prediction.gathered(each) - prediction.combined(each, sums);
  };
  return {prediction.gathered(bytes.of_messages), prediction.divided(bytes.of_parts),
          prediction.combined(bytes.of_parts, bytes.of_sums),
          pays_from(bytes.without_fixed_length, saved_by_combining)};
}

// Rank 0 predicts for all ranks, because their models may differ.
void CompressedReduction::predict_exchange(Communicator& communicator) {
  const Bytes bytes = bytes_in_step(kAfterWarmUp);
  std::array<double, 4> said{};
  if (communicator.rank() == Rank(0)) said = predictions(communicator, bytes);
  communicator.broadcast(std::span<double>(said), {.timeout = timeout()}).wait();
  prediction_.gathered_seconds = said[0];
  prediction_.divided_seconds = said[1];
  prediction_.combined_seconds = said[2];
  if (options_.exchange != CompressedExchange::automatic || std::isnan(said[3])) return;
  prediction_.combines_from.reset();
  if (said[3] != kNever) {
    const std::size_t most = bytes.without_fixed_length;
    if (!(said[3] >= 0 && said[3] <= static_cast<double>(most))) {
      const std::size_t named = reducer::job_rank(communicator, 0);
      reducer::abort_and_throw(communicator, StatusCode::protocol, named,
                               "rank {} says that combining pays from {} bytes on, where at most "
                               "{} are possible",
                               named, said[3], most);
    }
    prediction_.combines_from =
        static_cast<std::uint64_t>(said[3]) * static_cast<std::uint64_t>(ranks_);
  }
}

// Chooses which ranks add up what.
void CompressedReduction::choose_exchange(Communicator& communicator) {
  const Bytes bytes = bytes_in_step(kAfterWarmUp);
  prediction_ = {.message_bytes = bytes.of_messages};
  const bool is_asked_for = options_.exchange == CompressedExchange::divide ||
                            options_.exchange == CompressedExchange::combine;
  if (is_asked_for) {
    prediction_.combines_from = 0;
  } else if (ranks_ > 2 && are_worth_parts(bytes.without_fixed_length / sizeof(float),
                                           static_cast<std::size_t>(ranks_))) {
    prediction_.combines_from = 2 * bytes.without_fixed_length;
  }
  const bool is_automatic = options_.exchange == CompressedExchange::automatic;
  divides_ = options_.exchange == CompressedExchange::divide;
  if (is_automatic || trial_ != nullptr) predict_exchange(communicator);
  const double gathered = prediction_.gathered_seconds, divided = prediction_.divided_seconds;
  const bool is_known = prediction_.is_known();
  // For messages of a fixed length, combining is never predicted to be faster than dividing.
  divides_ = divides_ || (is_automatic && is_known && divided < gathered);
  const bool is_divided = divides_in_step(kAfterWarmUp);
  exchange_reason_ = reason_for(is_divided, bytes);
  if ((is_automatic || is_divided != divides_) && communicator.rank() == Rank(0)) {
    log(LogLevel::info, "messages are {}", exchange_reason_);
  }
  if (trial_ == nullptr || !is_known) return;
  const bool combines = options_.exchange == CompressedExchange::combine;
  trial_->expect(combines ? prediction_.combined_seconds : is_divided ? divided : gathered);
}

std::string CompressedReduction::reason_for(bool is_divided, const Bytes& bytes) const {
  std::string others = "gathered";
  if (prediction_.combines_from) {
    others = *prediction_.combines_from == 0
                 ? "combined"
                 : fmt::format(
                       "gathered, and combined in steps after one in which all ranks' "
                       "messages were {} bytes or more",
                       *prediction_.combines_from);
  }
  const bool has_others = bytes.without_fixed_length > 0;
  if (has_others && bytes.of_gradients == 0) return others;
  if (bytes.has_factors && bytes.of_gradients == 0) {
    return "not made: all gradients travel as factors";
  }
  const bool is_automatic = options_.exchange == CompressedExchange::automatic;
  std::string reason = is_divided ? "divided" : "gathered";
  if (options_.exchange == CompressedExchange::combine) reason = "combined";
  if (is_divided != divides_) {
    reason += ": gathered, they are as many bytes as an all_reduce without them";
  } else if (!is_automatic) {
    reason += ", as was asked for";
  } else if (prediction_.is_known()) {
    reason += fmt::format(
        ": the model of the links predicts {:.3g} ms gathered, {:.3g} ms divided and {:.3g} ms "
        "combined for messages of {} bytes from each of {} ranks",
        prediction_.gathered_seconds * 1e3, prediction_.divided_seconds * 1e3,
        prediction_.combined_seconds * 1e3, prediction_.message_bytes, ranks_);
  } else {
    reason += ": there is no model of these links, or of such messages";
  }
  return has_others ? reason + "; those without a fixed length are " + others : reason;
}

CompressedReduction::Bytes CompressedReduction::bytes_in_step(std::uint64_t step) const {
  Bytes bytes;
  for (const Gradient* const gradient : by_index_) {
    if (gradient == nullptr || gradient->compressor == nullptr) continue;
    if (gradient->codec == nullptr) {
      bytes.has_factors = true;
      continue;
    }
    const std::size_t count = gradient->residual.size();
    const std::size_t gradient_bytes = count * sizeof(float);
    const auto message = gradient->codec->message_bytes(count, step);
    if (!message) {
      bytes.without_fixed_length += gradient_bytes;
      continue;
    }
    bytes.of_messages += *message;
    bytes.of_parts += parts_bytes(*gradient->codec, count, static_cast<std::size_t>(ranks_), step);
    bytes.of_sums +=
        gradient->codec->is_sparse() ? sum_bytes(*message, gradient_bytes, ranks_) : gradient_bytes;
    bytes.of_gradients += gradient_bytes;
  }
  return bytes;
}

// Divides even if not asked to, if gathering would receive as much as an all_reduce without a
// codec, and the model of the links has not predicted what is faster for these messages. Decided
// for all buckets together, so that results do not depend on which bucket a gradient is in.
bool CompressedReduction::divides_in_step(std::uint64_t step) const {
  if (options_.exchange == CompressedExchange::combine) return false;
  const auto ranks = static_cast<std::size_t>(ranks_);
  const Bytes bytes = bytes_in_step(step);
  const bool is_predicted = options_.exchange == CompressedExchange::automatic &&
                            prediction_.is_known() &&
                            bytes.of_messages == prediction_.message_bytes;
  return divides_ ||
         (divides_instead(bytes.of_messages, bytes.of_gradients, ranks) && !is_predicted);
}

// How a gradient travels in this step. All ranks find the same, since each knows what all of them
// have announced.
CompressedReduction::Way CompressedReduction::way_of(const Gradient& gradient) const {
  if (gradient.codec == nullptr) return Way::factored;
  if (options_.exchange == CompressedExchange::combine) return Way::combined;
  if (gradient.has_fixed_length) return divides_step_ ? Way::divided : Way::gathered;
  return combines_step_ ? Way::combined : Way::gathered;
}

}  // namespace stretto

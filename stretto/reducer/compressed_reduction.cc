// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/compressed_reduction.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/base/content_hash.h"
#include "stretto/base/log.h"
#include "stretto/base/refuse.h"
#include "stretto/codec/header.h"
#include "stretto/reducer/agreement.h"
#include "stretto/reducer/compressed_exchange.h"
#include "stretto/reducer/compression_trial.h"
#include "stretto/reducer/saved_state.h"

namespace stretto {
namespace {

// Whether `pattern` fits `name`: each * stands for any letters, all other characters for
// themselves.
bool fits(std::string_view pattern, std::string_view name) {
  std::size_t of_pattern = 0, of_name = 0;
  // Place after the last *, which is the only * that may take more letters.
  std::optional<std::size_t> after_star;
  std::size_t first = 0;  // Where in the name the text after that * is compared.
  while (of_name < name.size()) {
    const bool is_left = of_pattern < pattern.size();
    if (is_left && pattern[of_pattern] == '*') {
      after_star = ++of_pattern;
      first = of_name;
    } else if (is_left && pattern[of_pattern] == name[of_name]) {
      ++of_pattern, ++of_name;
    } else if (after_star) {
      of_pattern = *after_star;
      of_name = ++first;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', of_pattern) == std::string_view::npos;
}

// The state of a gradient is kept by its name, and messages count elements in 32 bits.
void check_gradients(std::span<const GradientDescription> gradients) {
  std::set<std::string_view> names;
  for (const GradientDescription& gradient : gradients) {
    if (gradient.dtype != DType::f32) continue;
    if (gradient.count > std::numeric_limits<std::uint32_t>::max()) {
      refuse(
          "gradient {} has {} elements; codecs take fewer than 2^32. Cut the parameter in pieces, "
          "or use no codec",
          gradient.name, gradient.count);
    }
    if (names.insert(gradient.name).second) continue;
    refuse(
        "two gradients are named '{}': what is not sent of them is kept by name, so give each "
        "its own",
        gradient.name);
  }
}

// Warns of settings without effect, which nothing else would show.
void warn_of_mistakes(const CompressionOptions& options,
                      std::span<const GradientDescription> gradients) {
  for (const CompressionRule& rule : options.rules) {
    const auto is_named = [&](const auto& each) { return fits(rule.pattern, each.name); };
    if (std::ranges::any_of(gradients, is_named)) continue;
    log(LogLevel::warning, "the rule that compresses '{}' by {} fits no gradient's name",
        rule.pattern, rule.codec->name());
  }
  const auto is_f32 = [](const auto& each) { return each.dtype == DType::f32; };
  if (gradients.empty() || std::ranges::any_of(gradients, is_f32)) return;
  log(LogLevel::warning, "{} compresses nothing: codecs are for gradients of f32, and none is",
      options.codec->name());
}

}  // namespace

CompressedReduction::CompressedReduction(CompressionOptions options)
    : options_(std::move(options)) {
  const auto is_null = [](const CompressionRule& rule) { return rule.codec == nullptr; };
  if (options_.codec == nullptr || std::ranges::any_of(options_.rules, is_null)) {
    refuse("a codec of CompressionOptions is null; dense() leaves gradients as they are");
  }
  const auto grows = [&](const CompressionRule& rule) { return !rule.codec->is_contraction(); };
  if (options_.error_feedback &&
      (!options_.codec->is_contraction() || std::ranges::any_of(options_.rules, grows))) {
    refuse(
        "residuals of one_bit, stochastic, grow without bound; round to the nearest, or keep none "
        "(error_feedback = false; all_reduce() without a state)");
  }
  if (!(options_.momentum >= 0 && options_.momentum < 1) || !(options_.clip_norm >= 0)) {
    refuse(
        "CompressionOptions: momentum {}, clip_norm {}; the one must be from 0 to below 1, the "
        "other from 0 on",
        options_.momentum, options_.clip_norm);
  }
  if (options_.compression == Compression::automatic) trial_ = std::make_unique<Trial>();
  compresses_ = options_.compression != Compression::never;
}

CompressedReduction::~CompressedReduction() = default;

std::string CompressedReduction::name() const {
  std::string text = fmt::format("compressed, version {}: ", codec::Header::kVersion);
  for (const CompressionRule& rule : options_.rules) {
    text += fmt::format("{} by {}, ", rule.pattern, rule.codec->name());
  }
  constexpr const char* kPolicies[] = {"sent", "stop", "zeroed"};
  constexpr const char* kWhen[] = {"always", "automatic", "never"};
  text += fmt::format("{} from {} elements on; {}, {} residuals, infinity {}, seed {}",
                      options_.codec->name(), options_.min_elements,
                      kWhen[static_cast<int>(options_.compression)],
                      options_.error_feedback ? "with" : "without",
                      kPolicies[static_cast<int>(options_.non_finite)], options_.seed);
  if (options_.momentum > 0) {
    text +=
        fmt::format(", momentum {}{}", options_.momentum, options_.mask_momentum ? " masked" : "");
  }
  constexpr const char* kExchanges[] = {"", ", divided", ", combined", ", whatever is faster"};
  text += kExchanges[static_cast<int>(options_.exchange)];
  if (options_.clip_norm > 0) text += fmt::format(", clipped at {}", options_.clip_norm);
  if (options_.dense_steps > 0) text += fmt::format(", after {} steps", options_.dense_steps);
  return text;
}

std::shared_ptr<const Compressor> CompressedReduction::codec_for(
    const GradientDescription& gradient) const {
  const auto rule = std::ranges::find_if(options_.rules, [&](const CompressionRule& each) {
    return fits(each.pattern, gradient.name);
  });
  const bool is_ruled = rule != options_.rules.end();
  const auto& codec = is_ruled ? rule->codec : options_.codec;
  const bool is_small = !is_ruled && gradient.count < options_.min_elements;
  return is_small || codec->name() == "dense" ? nullptr : codec;
}

// Sets how the gradient is compressed. Its state starts anew if it has another length, or is
// another part of a longer gradient.
void CompressedReduction::describe(const GradientDescription& description,
                                   Gradient& gradient) const {
  gradient.name = description.name;
  gradient.key = content_hash(std::as_bytes(std::span(description.name)), options_.seed);
  gradient.compressor = codec_for(description);
  gradient.codec = dynamic_cast<const Codec*>(gradient.compressor.get());
  gradient.has_fixed_length = gradient.codec != nullptr && gradient.codec->has_fixed_length();
  Factors& factors = gradient.factors;
  factors.shape = codec::matrix_shape(description.count, description.rows);
  const auto* const power_sgd = dynamic_cast<const PowerSgd*>(gradient.compressor.get());
  const std::size_t rank = power_sgd != nullptr ? power_sgd->rank() : 0;
  const bool is_shorter = are_shorter(factors.shape, rank, description.count);
  if (power_sgd != nullptr && !is_shorter) gradient.compressor = nullptr;
  factors.rank = is_shorter ? rank : 0;
  factors.left.resize(factors.rank * factors.shape.rows);
  const std::size_t of_right = factors.rank * factors.shape.columns;
  if (factors.right.size() != of_right) {
    factors.right.resize(of_right);
    factors.draw_right(gradient.key);
  }
  const std::size_t count = gradient.compressor != nullptr ? description.count : 0;
  const bool is_other = std::exchange(gradient.first, description.first) != description.first;
  if (is_other || gradient.residual.size() != count) gradient.residual.assign(count, 0.0f);
  const std::size_t momenta = options_.momentum > 0 ? description.count : 0;
  if (is_other || gradient.momentum.size() != momenta) gradient.momentum.assign(momenta, 0.0f);
  gradient.hints.resize(static_cast<std::size_t>(ranks_) + 1);
}

void CompressedReduction::attach(Communicator& communicator,
                                 std::span<const GradientDescription> gradients) {
  check_gradients(gradients);
  if (communicator.rank() == Rank(0)) warn_of_mistakes(options_, gradients);
  communicator_ = &communicator;
  rank_ = communicator.rank().value();
  ranks_ = communicator.size();
  context_hash_ = codec::settings_of(name());
  by_index_.clear();
  buckets_.clear();
  pending_.clear();
  bucket_step_.reset();
  warm_up_steps_ = 0;
  finishes_early_ = options_.compression == Compression::never;
  std::set<std::string_view> codecs;
  for (const GradientDescription& description : gradients) {
    if (description.dtype != DType::f32) {
      by_index_.push_back(nullptr);
      continue;
    }
    std::unique_ptr<Gradient>& gradient = gradients_[description.name];
    if (gradient == nullptr) gradient = std::make_unique<Gradient>();
    describe(description, *gradient);
    if (gradient->compressor != nullptr) {
      warm_up_steps_ = std::max(warm_up_steps_, gradient->compressor->warm_up_steps());
      codecs.insert(gradient->compressor->name());
    }
    gradient->owner = owner_of(by_index_.size(), static_cast<std::size_t>(ranks_));
    by_index_.push_back(gradient.get());
  }
  if (trial_ != nullptr) {
    trial_ =
        std::make_unique<Trial>(fmt::format("{}", fmt::join(codecs.begin(), codecs.end(), ", ")));
  }
  const auto take_over = [this] {
    if (loaded_ != nullptr) restore(*loaded_);
    return reducer::ResumePoint{step_, announced_};
  };
  const auto agreed = reducer::take_over_together(communicator, name(), take_over, timeout());
  step_ = agreed.step;
  announced_ = agreed.announced_bytes;
  loaded_.reset();
  choose_exchange(communicator);
}

// Takes `state` over. Gradients that it does not mention start anew.
void CompressedReduction::restore(const reducer::SavedState& state) {
  reducer::check_compressed(state, rank_, ranks_,
                            [this](const std::string& name) { return gradients_.contains(name); });
  for (const auto& [name, gradient] : gradients_) {
    (void)reducer::find(state.residuals, name, gradient->residual.size());
    (void)reducer::find(state.momenta, name, gradient->momentum.size());
    if (gradient->factors.rank == 0) continue;
    (void)reducer::find(state.factors, name, gradient->factors.right.size());
  }
  step_ = state.step;
  const auto* const announced = reducer::find(state.factors, reducer::kAnnounced, 1);
  announced_ = announced != nullptr ? announced->front() : 0;
  for (const auto& [name, gradient] : gradients_) {
    const auto* const residual = reducer::find(state.residuals, name, gradient->residual.size());
    gradient->has_residual = residual != nullptr && options_.error_feedback;
    const auto hints = state.factors.find(name);  // Perhaps of another number of ranks.
    const bool has_them = hints != state.factors.end();
    if (gradient->factors.rank > 0) {
      if (has_them) gradient->factors.right = hints->second;
      if (!has_them) gradient->factors.draw_right(gradient->key);
    } else if (has_them) {
      const std::size_t count = std::min(hints->second.size(), gradient->hints.size());
      std::memcpy(gradient->hints.data(), hints->second.data(), count * sizeof(float));
    }
    if (residual != nullptr) gradient->residual = *residual;
    if (residual == nullptr) std::ranges::fill(gradient->residual, 0.0f);
    const auto* const momentum = reducer::find(state.momenta, name, gradient->momentum.size());
    if (momentum != nullptr) gradient->momentum = *momentum;
    if (momentum == nullptr) std::ranges::fill(gradient->momentum, 0.0f);
  }
}

std::vector<std::byte> CompressedReduction::save() const {
  if (loaded_ != nullptr) return reducer::print(*loaded_);
  reducer::SavedState state{.step = step_,
                            .rank = static_cast<std::uint64_t>(rank_),
                            .ranks = static_cast<std::uint64_t>(ranks_)};
  if (announced_ > 0) state.factors[reducer::kAnnounced] = {announced_};
  for (const auto& [name, gradient] : gradients_) {
    if (!gradient->residual.empty()) {
      state.residuals[name] = gradient->residual;
      std::vector<float>& hints = state.factors[name];
      hints = gradient->factors.right;
      if (gradient->codec != nullptr) {
        hints.resize(gradient->hints.size());
        std::memcpy(hints.data(), gradient->hints.data(), hints.size() * sizeof(float));
      }
    }
    if (!gradient->momentum.empty()) state.momenta[name] = gradient->momentum;
  }
  return reducer::print(state);
}

void CompressedReduction::load(std::span<const std::byte> bytes) {
  reducer::SavedState state = reducer::parse(bytes);
  if (communicator_ == nullptr) {
    loaded_ = std::make_unique<reducer::SavedState>(std::move(state));
    return;
  }
  restore(state);
  loaded_.reset();
}

std::vector<std::vector<std::byte>> CompressedReduction::redistribute(
    std::span<const std::vector<std::byte>> states, std::size_t ranks, ReduceOp op) {
  return reducer::redistribute(states, ranks, op);
}

std::span<const float> CompressedReduction::residual(const std::string& name) const {
  if (loaded_ != nullptr) {
    const auto found = loaded_->residuals.find(name);
    return found != loaded_->residuals.end() ? found->second : std::span<const float>();
  }
  const auto found = gradients_.find(name);
  if (found == gradients_.end()) return {};
  return found->second->residual;
}

}  // namespace stretto

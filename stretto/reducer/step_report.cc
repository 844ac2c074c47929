// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/step_report.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/base/content_hash.h"
#include "stretto/communicator/all_gather_value.h"
#include "stretto/reducer/agreement.h"

namespace stretto::reducer {
namespace {

using Use = StepReport::Use;
using Ranks = std::vector<std::size_t>;

constexpr std::size_t kNamesInMessage = 10;
constexpr std::size_t kRanksInMessage = 8;
constexpr std::size_t kCasesInMessage = 3;

std::string name_list(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), kNamesInMessage);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

// The ranks on which some gradients are missing, frozen, ..., and the ranks that have used them.
using Case = std::pair<Ranks, Ranks>;

// Gradients that are `other` on some rank, grouped by the ranks on which they are and the ranks
// that have computed them; in the order of gradients.
std::vector<std::pair<Case, std::vector<std::string>>> cases_of(
    const StepReport& report, const std::vector<StepReport::OfRank>& ranks,
    const std::vector<std::string>& names, Use other) {
  std::vector<std::pair<Case, std::vector<std::string>>> cases;
  std::map<Case, std::size_t> index_of;
  for (std::size_t i = 0; i < names.size(); ++i) {
    Case found;
    for (const StepReport::OfRank& each : ranks) {
      if (report.says(each, i, other)) found.first.push_back(each.rank);
      if (report.says(each, i, Use::used)) found.second.push_back(each.rank);
    }
    if (found.first.empty()) continue;
    // The number of ranks does not tell this, since ranks without data say nothing.
    const bool is_wanted = report.any_rank_says(i, Use::unused) || !found.second.empty();
    if (other == Use::frozen && !is_wanted) continue;
    const auto [at, is_new] = index_of.try_emplace(found, cases.size());
    if (is_new) cases.push_back({found, {}});
    cases[at->second].second.push_back(names[i]);
  }
  return cases;
}

// "413+, 413+, 412": for each rank the number of its batches from step `begin` on; with "+" if it
// has not begun the epoch that begins after step `end`.
std::string batch_list(const std::vector<StepReport::OfRank>& ranks, std::uint64_t begin,
                       std::uint64_t end) {
  std::string text;
  for (std::size_t rank = 0; rank < std::min(ranks.size(), kRanksInMessage); ++rank) {
    const StepPosition& position = ranks[rank].position;
    const bool has_ended = position.steps_before_epoch == end;
    text += fmt::format("{}{}{}", rank == 0 ? "" : ", ", (has_ended ? end : position.step) - begin,
                        has_ended ? "" : "+");
  }
  return ranks.size() > kRanksInMessage ? text + ", ..." : text;
}

}  // namespace

StepReport::StepReport(Communicator& communicator, std::size_t gradients)
    : communicator_(communicator),
      use_words_((gradients + kBits - 1) / kBits),
      own_(kFirstUse + kUses * use_words_),
      all_(communicator.allocate<std::uint64_t>(own_.size())) {}

void StepReport::begin(const StepPosition& position) {
  position_ = position;
  std::fill(own_.begin() + kFirstUse, own_.end(), 0);
  own_[kPosition] = content_hash(std::as_bytes(std::span(&position_, 1)));
  own_[kNotPosition] = ~own_[kPosition];
}

Work StepReport::exchange(const std::optional<Duration>& timeout) {
  std::copy(own_.begin(), own_.end(), all_.begin());
  own_[kRequests] = 0;
  return communicator_.all_reduce(all_, {.op = ReduceOp::bit_or, .timeout = timeout});
}

bool StepReport::any_rank_says(Use use) const {
  const auto words = all_.span().subspan(word_of(use), use_words_);
  return std::any_of(words.begin(), words.end(), [](std::uint64_t word) { return word != 0; });
}

std::vector<StepReport::OfRank> StepReport::gather(const std::optional<Duration>& timeout) const {
  const std::vector<StepPosition> positions =
      communicator::all_gather_value(communicator_, position_, timeout);
  std::vector<std::uint64_t> words(own_.size() * positions.size());
  communicator_.all_gather(own_, words, {.timeout = timeout}).wait();
  std::vector<OfRank> ranks;
  for (auto at = words.begin(); const StepPosition& position : positions) {
    const auto end = at + static_cast<std::ptrdiff_t>(own_.size());
    ranks.push_back({job_rank(communicator_, ranks.size()), position, {at, end}});
    at = end;
  }
  return ranks;
}

std::string describe_positions(const std::vector<StepReport::OfRank>& ranks) {
  const auto epoch_of = [](const StepReport::OfRank& rank) {
    return std::pair(rank.position.steps_before_epoch, rank.position.epoch);
  };
  const auto latest = epoch_of(*std::ranges::max_element(ranks, {}, epoch_of));
  const StepPosition* late = nullptr;  // Of a rank in an earlier epoch.
  Ranks ahead, behind, elsewhere;
  std::string steps;
  bool same_step = true;
  for (const StepReport::OfRank& each : ranks) {
    const StepPosition& position = each.position;
    steps += fmt::format("{}rank {} has ended step {} of model {}", steps.empty() ? "" : ", ",
                         each.rank, position.step, position.reducer);
    const StepPosition& first = ranks.front().position;
    same_step = same_step && position.step == first.step && position.reducer == first.reducer;
    if (position.buckets != first.buckets) elsewhere.push_back(each.rank);
    (epoch_of(each) == latest ? ahead : behind).push_back(each.rank);
    if (epoch_of(each) != latest) late = &position;
  }
  if (same_step && late == nullptr && !elsewhere.empty()) {
    return fmt::format(
        "in step {} {} {} formed other buckets of gradients than rank {}: load a state on all "
        "ranks, that of the same step, before the same forward pass",
        ranks.front().position.step, rank_list(elsewhere), elsewhere.size() == 1 ? "has" : "have",
        ranks.front().rank);
  }
  if (!same_step || late == nullptr) {
    return fmt::format(
        "ranks have averaged gradients of different steps: {}. Use several models of one "
        "communicator in the same order on all ranks",
        steps);
  }
  return fmt::format(
      "in step {} {} {} begun epoch {} (after step {}, and join() is not active), {} {} still in "
      "epoch {} (batches of each rank in it: {}). {}",
      late->step, rank_list(ahead), ahead.size() == 1 ? "has" : "have", latest.second, latest.first,
      rank_list(behind), behind.size() == 1 ? "is" : "are", late->epoch,
      batch_list(ranks, late->steps_before_epoch, latest.first), kEquallyManySteps);
}

std::string describe_missing(const StepReport& report, const std::vector<StepReport::OfRank>& ranks,
                             const std::vector<std::string>& names) {
  const auto cases = cases_of(report, ranks, names, Use::unused);
  std::string text;
  for (std::size_t i = 0; i < std::min(cases.size(), kCasesInMessage); ++i) {
    const auto& [found, missing] = cases[i];
    text += fmt::format("{}{} {} got no gradient on {}: {}; ", text.empty() ? "" : "and ",
                        missing.size(), missing.size() == 1 ? "parameter" : "parameters",
                        rank_list(found.first), name_list(missing));
    text += found.second.empty() ? "used on no rank"
                                 : fmt::format("used on {}", rank_list(found.second));
    text += ". ";
  }
  if (cases.size() > kCasesInMessage) text += "There are others. ";
  return text +
         "A step needs all gradients of all ranks. Fix: set the option find_unused_parameters if "
         "that is intended, let the loss depend on them, freeze them (requires_grad = false), or "
         "keep all but the last of several backward passes of a step inside no_sync()";
}

std::string describe_frozen(const StepReport& report, const std::vector<StepReport::OfRank>& ranks,
                            const std::vector<std::string>& names) {
  const auto cases = cases_of(report, ranks, names, Use::frozen);
  if (cases.empty()) return "ranks disagree about which parameters are frozen";
  const auto& [found, frozen] = cases.front();
  return fmt::format(
      "{} {} frozen (requires_grad = false) on {} and not on the others: {}. Fix: "
      "freeze and unfreeze on all ranks before the same forward pass",
      frozen.size(), frozen.size() == 1 ? "parameter is" : "parameters are", rank_list(found.first),
      name_list(frozen));
}

std::string describe_other_counts(const StepReport& report,
                                  const std::vector<StepReport::OfRank>& ranks,
                                  const std::vector<std::string>& names, Use use) {
  std::string text = use == Use::changed ? "static_graph was promised, but " : "";
  const auto cases = cases_of(report, ranks, names, use);
  for (std::size_t i = 0; i < std::min(cases.size(), kCasesInMessage); ++i) {
    const auto& [found, gradients] = cases[i];
    text += fmt::format("{}{} {} {} on {}: {}", i == 0 ? "" : "; ", gradients.size(),
                        gradients.size() == 1 ? "parameter" : "parameters",
                        use == Use::changed ? "got more or fewer gradients than in the first step"
                                            : "got a gradient a second time in one step",
                        rank_list(found.first), name_list(gradients));
  }
  if (cases.size() > kCasesInMessage) text += "; there are others";
  if (use == Use::changed) {
    return text +
           ". Fix: let each step use what the first one has used, as often, or set "
           "find_unused_parameters instead of static_graph";
  }
  return text +
         ", after the first one had been handed over. Either a second backward pass began before "
         "the first one was complete, or the parameter takes part both inside and outside of a "
         "checkpointed (re-entrant) part of the model; then set the option static_graph";
}

std::string rank_list(const std::vector<std::size_t>& ranks) {
  const std::size_t shown = std::min(ranks.size(), kRanksInMessage);
  std::string text = fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks",
                                 fmt::join(ranks.begin(), ranks.begin() + shown, ", "));
  if (shown < ranks.size()) text += fmt::format(" and {} more", ranks.size() - shown);
  return text;
}

}  // namespace stretto::reducer

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/replica_check.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "stretto/base/check.h"
#include "stretto/base/content_hash.h"
#include "stretto/communicator/all_gather_value.h"
#include "stretto/communicator/byte_exchange.h"
#include "stretto/reducer/agreement.h"
#include "stretto/reducer/step_report.h"

namespace stretto::reducer {
namespace {

// Limit for one rank's description; that of a model with a million tensors is shorter.
constexpr std::size_t kLongestDescription = std::size_t{256} << 20;

// Format: a line for each item, with tabs between fields. Tabs and line breaks in names become
// spaces.
std::string clean(std::string_view text) {
  std::string result(text);
  std::replace_if(
      result.begin(), result.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return result;
}

std::string encode(const std::vector<ReplicaItem>& items) {
  std::string text;
  for (const ReplicaItem& item : items) {
    text += clean(item.kind) + '\t' + clean(item.name);
    for (const auto& [fact, value] : item.facts) text += '\t' + clean(fact) + '\t' + clean(value);
    text += '\n';
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// "[10, 64] on ranks 0, 2; [10, 65] on rank 1".
std::string values_by_rank(const Communicator& communicator,
                           const std::vector<std::string>& value_of_rank) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::size_t>> ranks;
  for (std::size_t rank = 0; rank < value_of_rank.size(); ++rank) {
    const std::string& value = value_of_rank[rank];
    if (ranks[value].empty()) order.push_back(value);
    ranks[value].push_back(job_rank(communicator, rank));
  }
  std::string text;
  for (const std::string& value : order) {
    text += fmt::format("{}{} on {}", text.empty() ? "" : "; ", value, rank_list(ranks[value]));
  }
  return text;
}

// The fields of one item, by rank; empty where a rank's list is shorter.
using Lines = std::vector<std::vector<std::string_view>>;

std::string field(const std::vector<std::string_view>& fields, std::size_t index) {
  return index < fields.size() ? std::string(fields[index]) : "nothing";
}

std::string identity(const std::vector<std::string_view>& fields) {
  return fields.empty() ? "nothing" : fmt::format("{} '{}'", fields[0], field(fields, 1));
}

template <class Values>
bool all_equal(const Values& values) {
  return std::ranges::all_of(values, [&](const auto& each) { return each == values.front(); });
}

// How the ranks' fields of item `index` differ; empty if they do not.
std::optional<std::string> explain_item(const Communicator& communicator, const Lines& ranks,
                                        std::size_t index) {
  std::vector<std::string> values;
  std::size_t fields = 0;
  for (const auto& rank : ranks) {
    values.push_back(identity(rank));
    fields = std::max(fields, rank.size());
  }
  if (!all_equal(values)) {
    return fmt::format("entry {} is {}", index, values_by_rank(communicator, values));
  }
  for (std::size_t f = 3; f < fields; f += 2) {
    values.clear();
    for (const auto& rank : ranks) values.push_back(field(rank, f));
    if (all_equal(values)) continue;
    return fmt::format("{} has {} {}", identity(ranks[0]), field(ranks[0], f - 1),
                       values_by_rank(communicator, values));
  }
  return std::nullopt;
}

std::string explain(const Communicator& communicator, const std::vector<std::string>& texts) {
  std::vector<std::vector<std::string_view>> lines;
  std::size_t longest = 0;
  for (const std::string& text : texts) {
    lines.push_back(split(text, '\n'));
    longest = std::max(longest, lines.back().size());
  }
  for (std::size_t i = 0; i < longest; ++i) {
    Lines item;
    for (const auto& rank : lines) {
      item.push_back(i < rank.size() ? split(rank[i], '\t') : std::vector<std::string_view>());
    }
    if (auto text = explain_item(communicator, item, i)) return *text;
  }
  return "their descriptions differ";
}

}  // namespace

void check_replicas_described_alike(Communicator& communicator,
                                    const std::vector<ReplicaItem>& items,
                                    const std::optional<Duration>& timeout) {
  const std::string own = encode(items);
  const std::uint64_t hash = content_hash(std::as_bytes(std::span(own)));
  if (all_equal(communicator::all_gather_value(communicator, hash, timeout))) return;
  std::vector<std::string> texts;
  for (const ByteVector& bytes :
       all_gather_bytes(communicator, std::as_bytes(std::span(own)),
                        {.limit_bytes = kLongestDescription, .timeout = timeout})) {
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  throw Mismatch(status_of(StatusCode::mismatch, "the model is not the same on all ranks: {}",
                           explain(communicator, texts)));
}

void check_replicas_hash_alike(Communicator& communicator, const std::vector<std::string>& names,
                               std::span<const std::uint64_t> hashes,
                               const std::optional<Duration>& timeout) {
  STRETTO_CHECK(names.size() == hashes.size(), "{} names, {} hashes", names.size(), hashes.size());
  const std::array<std::uint64_t, 2> summary = {content_hash(std::as_bytes(hashes)), hashes.size()};
  const auto summaries = communicator::all_gather_value(communicator, summary, timeout);
  if (all_equal(summaries)) return;
  // An all_gather of lists of different lengths would fail the group.
  std::vector<std::string> counts;
  for (const auto& [hash, count] : summaries) counts.push_back(fmt::format("{} parameters", count));
  if (!all_equal(counts)) {
    throw Mismatch(status_of(StatusCode::mismatch, "replicas have diverged: {}",
                             values_by_rank(communicator, counts)));
  }
  std::vector<std::uint64_t> all(hashes.size() * static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(hashes, all, {.timeout = timeout}).wait();
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    std::vector<std::size_t> different;
    for (std::size_t at = i; at < all.size(); at += hashes.size()) {
      if (all[at] != all[i]) different.push_back(job_rank(communicator, at / hashes.size()));
    }
    if (different.empty()) continue;
    throw Mismatch(Status(StatusCode::mismatch,
                          fmt::format("replicas have diverged: {} on {} differs from rank {}",
                                      names[i], rank_list(different), job_rank(communicator, 0)),
                          Rank(static_cast<std::int32_t>(different.front()))));
  }
}

}  // namespace stretto::reducer

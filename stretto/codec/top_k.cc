// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/refuse.h"
#include "stretto/codec/scratch.h"
#include "stretto/codec/sparse_codec.h"
#include "stretto/kernel/select.h"

namespace stretto::codec {
namespace {

using kernel::kMagnitudeBinBits;
using kernel::kMagnitudeBins;
using kernel::magnitude_bits;

// Defines the greatest elements: all above a magnitude, and the first `equal` elements of that
// magnitude.
struct Cut {
  std::uint32_t magnitude = 0;
  std::size_t equal = 0;
  bool has_more = true;  // Whether there may be more elements of that magnitude.
};

// The number of candidates that the first pass may leave, for `wanted` of `count` elements. More of
// them cost time and memory; with fewer, a second pass over all elements becomes likely.
std::size_t candidate_room(std::size_t wanted, std::size_t count) {
  return std::min(count, 4 * wanted + 1024);
}

// The limit for the first pass of the next step, whose cut will be near this one. It is so far
// below this cut that the candidates exceed `wanted` by about a quarter. Fewer candidates cost
// less, until gradients that change by a twentieth from step to step need a second pass. `limit`
// was the limit of this step, and `found` elements reached it; 0 means that there was no limit.
std::uint32_t next_hint(std::uint32_t cut, std::uint32_t limit, std::size_t found,
                        std::size_t wanted) {
  constexpr double kOctave = 1u << 23;
  double below = kOctave / 2;
  if (limit > cut) {
    below = 2.0 * (limit - cut);
  } else if (limit > 0) {
    const double target = static_cast<double>(wanted) / 4 + 32;
    const double in_vain = static_cast<double>(found - std::min(found, wanted));
    below = (cut - limit) * std::min(4.0, target / (in_vain + 1));
  }
  const auto distance = static_cast<std::uint32_t>(std::clamp(below, kOctave / 1024, kOctave));
  return cut > distance ? cut - distance : 0;
}

// For reused limits. The limit is exact again every kReuses steps. In between, corrected() raises a
// limit that found too many elements and lowers one that found too few. At about 1 % of a normal or
// a Laplace distribution, the number of found elements falls with the 5th to 7th power of the
// limit.
constexpr std::uint64_t kReuses = 64;
std::uint32_t corrected(std::uint32_t limit, std::size_t found, std::size_t wanted) {
  const float ratio = static_cast<float>(found) / static_cast<float>(wanted);
  return magnitude_bits(std::bit_cast<float>(limit) * std::pow(ratio, 0.2f));
}

// Returns the digit that contains the `wanted`th greatest value, counted from the highest digit
// down. `wanted` becomes the number of values wanted from that digit.
std::uint32_t digit_of(std::span<const std::uint32_t> counts, std::size_t& wanted) {
  auto digit = static_cast<std::uint32_t>(counts.size());
  while (wanted > counts[--digit]) wanted -= counts[digit];
  return digit;
}

// The cut for the `wanted` greatest of `values`, whose magnitudes lie in [least, greatest].
Cut cut_of(std::span<const float> values, std::uint32_t least, std::uint32_t greatest,
           std::size_t wanted, std::vector<std::uint32_t>& magnitudes) {
  // With so many bins, the bin that is looked for has few values. More bins would take longer to
  // clear and to search.
  const unsigned bits =
      std::clamp(static_cast<unsigned>(std::bit_width(values.size() / 8)), 4u, kMagnitudeBinBits);
  std::array<std::uint32_t, kMagnitudeBins> room_for_counts;
  const std::span counts = std::span(room_for_counts).first(std::size_t{1} << bits);
  std::ranges::fill(counts, 0u);
  const unsigned width = static_cast<unsigned>(std::bit_width(greatest - least));
  const unsigned shift = width > bits ? width - bits : 0;
  for (const float value : values) ++counts[(magnitude_bits(value) - least) >> shift];
  const std::uint32_t bin = digit_of(counts, wanted);
  const std::uint32_t from = least + (bin << shift);
  const std::uint32_t to = std::min(greatest, from + (1u << shift) - 1);
  const std::span with_spare = room(magnitudes, counts[bin] + kernel::kSpareMagnitudes);
  kernel::magnitudes_between(values, from, to, with_spare);
  const std::span of_bin = with_spare.first(counts[bin]);
  const auto place = of_bin.begin() + static_cast<std::ptrdiff_t>(wanted - 1);
  std::nth_element(of_bin.begin(), place, of_bin.end(), std::greater<>());
  const std::uint32_t magnitude = *place;
  const auto above =
      std::count_if(of_bin.begin(), place, [=](std::uint32_t other) { return other > magnitude; });
  const std::size_t equal = wanted - static_cast<std::size_t>(above);
  const auto of_magnitude = std::count(of_bin.begin(), of_bin.end(), magnitude);
  return {magnitude, equal, static_cast<std::size_t>(of_magnitude) > equal};
}

// `density` of `count` elements, rounded up; at least one, if there are any.
std::size_t part_of(std::size_t count, double density) {
  const auto part = static_cast<std::size_t>(std::ceil(static_cast<double>(count) * density));
  return std::min(count, std::max<std::size_t>(1, part));
}

class TopK final : public SparseCodec {
 public:
  explicit TopK(const TopKOptions& options)
      : SparseCodec(Kind::top_k, name_of(options), options.values), options_(options) {}

 private:
  static std::string name_of(const TopKOptions& options) {
    if (!(options.density > 0 && options.density <= 1)) {
      refuse("top_k: the density is {}; it must be above 0 and at most 1", options.density);
    }
    const std::string how = options.exact ? "" : ", reused limit";
    if (options.warm_up_steps == 0) return fmt::format("top_k({}{})", options.density, how);
    return fmt::format("top_k({} after {} steps{})", options.density, options.warm_up_steps, how);
  }

  std::size_t wanted(std::size_t count, std::uint64_t step) const {
    if (step >= options_.warm_up_steps) return part_of(count, options_.density);
    const double part = static_cast<double>(step) / static_cast<double>(options_.warm_up_steps);
    return part_of(count, std::pow(options_.density, part));
  }
  std::optional<std::size_t> values_of(std::size_t count, std::uint64_t step) const override {
    if (!options_.exact) return std::nullopt;
    return wanted(count, step);
  }

  std::uint64_t warm_up_steps() const override { return options_.warm_up_steps; }
  std::optional<Extraction> extraction(std::size_t count, const Position& position) const override {
    if (!options_.exact) return std::nullopt;
    return in_format({.greatest = wanted(count, position.step)});
  }
  Search search(std::size_t count, const Position& position, std::uint32_t hint) const override {
    const std::size_t room = candidate_room(wanted(count, position.step), count);
    if (hint == 0) return {.room = room};
    return {.limit = hint, .room = room};
  }

  std::size_t choose(const Task& task) const override;
  bool is_about(const Task& task, std::size_t wanted) const;
  std::size_t keep(const Task& task, std::size_t found, std::uint32_t limit,
                   std::size_t wanted) const;
  // The hint for the next step.
  std::uint32_t next_limit(const Task& task, std::uint32_t cut, std::size_t wanted) const {
    return options_.exact ? next_hint(cut, *task.hint, task.found, wanted) : cut;
  }
  static Cut exact_cut(const Task& task, std::span<const std::uint32_t> counts, std::size_t wanted);

  const TopKOptions options_;
};

// Keeps the greatest of the `found` candidates in the scratch, all of which are at least `limit`,
// and puts the others back.
std::size_t TopK::keep(const Task& task, std::size_t found, std::uint32_t limit,
                       std::size_t wanted) const {
  const auto indices = std::span(task.scratch.indices).first(found);
  const auto values = std::span(task.scratch.values).first(found);
  Cut cut = cut_of(values, limit, task.greatest, wanted, task.scratch.magnitudes);
  *task.hint = next_limit(task, cut.magnitude, wanted);
  if (!cut.has_more) return kernel::keep_at_least(indices, values, cut.magnitude, task.carry);
  std::size_t kept = 0;
  for (std::size_t j = 0; j < found; ++j) {
    const std::uint32_t magnitude = magnitude_bits(values[j]);
    const bool is_equal = magnitude == cut.magnitude && cut.equal > 0;
    if (is_equal) --cut.equal;
    if (magnitude > cut.magnitude || is_equal) {
      indices[kept] = indices[j];
      values[kept++] = values[j];
    } else {
      task.carry[indices[j]] = values[j];
    }
  }
  return kept;
}

// Whether the elements found with the limit of the last step are about as many as wanted.
bool TopK::is_about(const Task& task, std::size_t wanted) const {
  return !options_.exact && *task.hint > 0 && task.position.step % kReuses != 0 &&
         2 * task.found >= wanted && task.found > 0 && task.found <= 2 * wanted;
}

// Finds the cut digit by digit, for vectors with so many similar elements that candidates would not
// pay.
Cut TopK::exact_cut(const Task& task, std::span<const std::uint32_t> counts, std::size_t wanted) {
  constexpr unsigned kShift = kernel::kMagnitudeBinShift;
  std::uint32_t prefix = digit_of(counts, wanted);
  unsigned prefix_shift = kShift;
  for (const unsigned shift : {7u, 0u}) {
    std::array<std::uint32_t, kMagnitudeBins> of_digit{};
    const std::uint32_t mask = (1u << (prefix_shift - shift)) - 1;
    for (const float value : task.carry) {
      const std::uint32_t magnitude = magnitude_bits(value);
      if (magnitude >> prefix_shift == prefix) ++of_digit[magnitude >> shift & mask];
    }
    prefix = prefix << (prefix_shift - shift) | digit_of(of_digit, wanted);
    prefix_shift = shift;
  }
  return {prefix, wanted};
}

std::size_t TopK::choose(const Task& task) const {
  const std::size_t count = task.carry.size();
  if (count == 0) return 0;
  const std::size_t k = wanted(count, task.position.step);
  // The first pass has found enough, and not too many.
  const auto indices = std::span(task.scratch.indices).first(candidate_room(k, count));
  const auto values = std::span(task.scratch.values).first(indices.size());
  if (is_about(task, k)) {
    *task.hint = corrected(*task.hint, task.found, k);
    return task.found;
  }
  if (task.found >= k && task.found <= indices.size()) {
    return keep(task, task.found, *task.hint, k);
  }
  put_back(task.carry, task.scratch, std::min(task.found, indices.size()));
  // Searches once more with a slightly lower limit, which takes a quarter of the time of counting.
  if (task.found < k && 2 * task.found >= k) {
    const std::uint32_t limit = corrected(*task.hint, task.found, k + k / 4);
    const auto found = kernel::take_at_least(task.carry, limit, indices, values).count;
    if (found >= k && found <= indices.size()) return keep(task, found, limit, k);
    put_back(task.carry, task.scratch, std::min(found, indices.size()));
  }
  std::array<std::uint32_t, kMagnitudeBins> counts;
  kernel::count_magnitudes(task.carry, counts);
  std::size_t rest = k;
  const std::uint32_t digit = digit_of(counts, rest);
  if (k - rest + counts[digit] <= indices.size()) {
    const auto limit = digit << kernel::kMagnitudeBinShift;
    return keep(task, kernel::take_at_least(task.carry, limit, indices, values).count, limit, k);
  }
  Cut cut = exact_cut(task, counts, k);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < count && kept < k; ++i) {
    const std::uint32_t magnitude = magnitude_bits(task.carry[i]);
    const bool is_equal = magnitude == cut.magnitude && cut.equal > 0;
    if (is_equal) --cut.equal;
    if (magnitude < cut.magnitude || (magnitude == cut.magnitude && !is_equal)) continue;
    indices[kept] = static_cast<std::uint32_t>(i);
    values[kept++] = std::exchange(task.carry[i], 0.0f);
  }
  *task.hint = next_limit(task, cut.magnitude, k);
  return kept;
}

}  // namespace
}  // namespace stretto::codec

namespace stretto {
std::shared_ptr<const Codec> top_k(const TopKOptions& options) {
  return std::make_shared<codec::TopK>(options);
}
}  // namespace stretto

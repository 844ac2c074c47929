// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/reproducible_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "stretto/base/refuse.h"
#include "stretto/base/round_up.h"
#include "stretto/kernel/fixed_point.h"

namespace stretto {

ReproducibleSum::ReproducibleSum(Communicator& communicator, std::size_t count,
                                 const std::optional<Duration>& timeout)
    : communicator_(communicator), count_(count), timeout_(timeout) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  if (count > std::numeric_limits<std::size_t>::max() - ranks) {
    refuse("a ReproducibleSum of {} elements fits into no memory", count);
  }
  const std::size_t elements = round_up(count, ranks);
  for (Buffer<std::int64_t>* const whole : {&high_, &low_}) {
    *whole = communicator.allocate<std::int64_t>(elements);
    std::ranges::fill(whole->span(), 0);
  }
  for (Buffer<std::int64_t>* const part : {&high_sum_, &low_sum_}) {
    *part = communicator.allocate<std::int64_t>(elements / ranks);
  }
  values_ = communicator.allocate<float>(elements);
}

void ReproducibleSum::add(std::span<const float> values, std::size_t first) {
  if (first > count_ || values.size() > count_ - first) {
    refuse("{} values from element {} on are added to a ReproducibleSum of {}", values.size(),
           first, count_);
  }
  is_representable_ = kernel::add_fixed_point(values.data(), values.size(), high_.data() + first,
                                              low_.data() + first) &&
                      is_representable_;
}

std::span<const float> ReproducibleSum::reduce(double factor) {
  // One maximum over all ranks finds the greatest values, and the least ones as the greatest
  // negated.
  const auto count = static_cast<std::int64_t>(count_);
  const auto bits = std::bit_cast<std::uint64_t>(factor);  // In halves, which can be negated.
  const auto high_bits = static_cast<std::int64_t>(bits >> 32);
  const auto low_bits = static_cast<std::int64_t>(bits & 0xffffffff);
  std::array<std::int64_t, 7> of_all = {
      is_representable_ ? 0 : 1, count, -count, high_bits, -high_bits, low_bits, -low_bits};
  Work told = communicator_.all_reduce(of_all, {.op = ReduceOp::max, .timeout = timeout_});
  const ReduceScatterOptions options{.timeout = timeout_};
  Work high = communicator_.reduce_scatter(high_.span(), high_sum_.span(), options);
  Work low = communicator_.reduce_scatter(low_.span(), low_sum_.span(), options);
  told.wait();
  high.wait();
  low.wait();
  if (of_all[1] != -of_all[2] || of_all[3] != -of_all[4] || of_all[5] != -of_all[6]) {
    throw Mismatch(status_of(StatusCode::mismatch,
                             "ranks reduce ReproducibleSums of {} to {} elements, or by different "
                             "factors; this one has {} elements and the factor {}",
                             -of_all[2], of_all[1], count_, factor));
  }
  const auto own = values_.span().subspan(
      static_cast<std::size_t>(communicator_.rank().value()) * high_sum_.size(), high_sum_.size());
  kernel::from_fixed_point(high_sum_.data(), low_sum_.data(), high_sum_.size(), factor, own.data());
  if (of_all[0] > 0) std::ranges::fill(own, std::numeric_limits<float>::quiet_NaN());
  communicator_.all_gather(own, values_.span(), {.timeout = timeout_}).wait();
  std::ranges::fill(high_.span(), 0);
  std::ranges::fill(low_.span(), 0);
  is_representable_ = true;
  return values_.span().first(count_);
}

}  // namespace stretto

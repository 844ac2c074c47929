// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/divided_reduction.h"

#include <utility>

#include <fmt/format.h>

#include "stretto/base/check.h"
#include "stretto/base/name_in.h"
#include "stretto/codec/arithmetic.h"

namespace stretto {
namespace {

// 8-bit floats have no reductions.
bool is_divided(const FullBucket& bucket) {
  const DType dtype = bucket.view.dtype;
  return bucket.op == ReduceOp::mean &&
         (is_complex(dtype) || (is_floating_point(dtype) && size_bytes(dtype) > 1));
}

// The largest power of two whose square is at most `ranks`.
int half_of_division(int ranks) {
  int divisor = 1;
  while (4 * divisor * divisor <= ranks) divisor *= 2;
  return divisor;
}

// The bucket that the other hook gets.
FullBucket summed(const FullBucket& bucket) {
  FullBucket result = bucket;
  result.op = ReduceOp::sum;
  return result;
}

}  // namespace

std::string_view name(MeanDivision division) {
  return name_in({"after_sum", "before_sum", "half_each"}, division, "unknown");
}

DividedReduction::DividedReduction(MeanDivision division, std::shared_ptr<CommunicationHook> inner)
    : division_(division), inner_(std::move(inner)) {
  STRETTO_CHECK(division != MeanDivision::after_sum, "the operation mean divides after the sum");
}

std::string DividedReduction::name() const {
  return fmt::format("mean divided {}, then {}", stretto::name(division_), inner_->name());
}

Work DividedReduction::start(Communicator& communicator, const FullBucket& bucket) {
  if (!is_divided(bucket)) return inner_->start(communicator, bucket);
  const int ranks = communicator.size();
  const int before = division_ == MeanDivision::before_sum ? ranks : half_of_division(ranks);
  after_ = static_cast<double>(before) / ranks;
  codec::multiply(bucket.view, 1.0 / before);
  return inner_->start(communicator, summed(bucket));
}

void DividedReduction::finish(const FullBucket& bucket) {
  if (!is_divided(bucket)) return inner_->finish(bucket);
  inner_->finish(summed(bucket));
  codec::multiply(bucket.view, after_);
}

}  // namespace stretto

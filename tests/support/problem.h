// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/operation.h"
#include "stretto/communicator/communicator.h"
#include "tests/support/bytes.h"

namespace stretto::testing {

// All supported pairs of dtype and operation.
std::vector<std::pair<DType, ReduceOp>> reductions();

// One collective to try, with all that a serial oracle needs to know the result.
struct Problem {
  Collective collective = Collective::all_reduce;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int ranks = 1;
  Rank root = 0;
  // In elements. `count`: of each rank's buffer, if the collective has no shares. `shares`: of each
  // rank's share; for an all_to_all, shares[s * ranks + d] go from s to d.
  std::size_t count = 0;
  std::vector<std::size_t> shares = {};
  std::string algorithm = {};
  bool registered = false;
  bool in_place = false;
  // Whether to choose inputs of which every order of combination gives the same bits.
  bool any_order = false;
};

// Whether its algorithm combines in an order of its own, instead of a canonical order.
bool has_own_order(const Problem& problem);
// Returns `problem` with equal shares of `share` elements.
Problem with_equal_shares(Problem problem, std::size_t share);

std::string describe(const Problem& problem);

// Computes the result of a problem by the slow reference of the kernels (reduce_oracle.h), over
// whole inputs in the canonical order, without the kernels themselves.
class Oracle {
 public:
  explicit Oracle(const Problem& problem);
  const Problem& problem() const { return problem_; }
  // A rank's input: small numbers that differ from rank to rank, no two alike in a row. If the
  // algorithm has an order of its own, every order gives the same bits with these numbers.
  const Bytes& input_of(int rank) const { return inputs_[static_cast<std::size_t>(rank)]; }
  // The output of a rank; empty if the collective gives it none.
  Bytes expected_of(int rank) const;

 private:
  Bytes reduced() const;
  Bytes exchanged(int rank) const;

  Problem problem_;
  std::vector<Bytes> inputs_;
  Bytes reduced_;  // Empty if nothing is reduced.
};

// One rank's buffers for one problem, and its operation.
class Trial {
 public:
  Trial(Communicator& comm, const Oracle& oracle);
  Work start();
  // Returns what is wrong once the operation has ended; empty if nothing is.
  std::string failure() const;

 private:
  std::span<std::byte> buffer(const Bytes& content);
  std::size_t place_in_longer_buffer() const;
  std::string failure_of_input() const;
  template <class Options>
  Options options() const;
  std::vector<std::size_t> row(bool sends) const;

  Communicator& comm_;
  const Oracle& oracle_;
  const Problem& problem_;
  int rank_;
  Bytes expected_;
  std::vector<Memory> registered_;
  std::vector<std::unique_ptr<Bytes>> private_;
  bool shared_ = false;  // Whether input and output lie in one buffer.
  std::span<std::byte> input_;
  std::span<std::byte> output_;
};

// Runs the problem on all ranks, from the calling thread; returns the first failure.
std::string try_on_all(std::span<const std::unique_ptr<Communicator>> ranks,
                       const Problem& problem);

}  // namespace stretto::testing

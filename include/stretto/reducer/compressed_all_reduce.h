// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/reduce_op.h"
#include "stretto/codec/codec.h"
#include "stretto/communicator/communicator.h"
#include "stretto/reducer/compressed_reduction.h"

namespace stretto {

class CompressionState;

struct CompressedAllReduceOptions {
  std::shared_ptr<const Compressor> codec;
  // Where what a message does not say is kept until the next call. Null: it is lost.
  CompressionState* state = nullptr;
  // What the vector is called in the state; not empty, if there is one.
  std::string name = {};
  ReduceOp op = ReduceOp::sum;  // Or mean.
  NonFinite non_finite = NonFinite::send;
  CompressedExchange exchange = CompressedExchange::gather;
  std::uint64_t seed = 0;  // Of random choices, which are other ones in each call with a state.
  std::optional<Duration> timeout = std::nullopt;  // Of all but agreeing: there the communicator's.
};

// An all_reduce by messages of a codec that is on its way. Move-only. Destroyed without wait(), it
// ends as a Work does, and the vector holds anything.
class [[nodiscard]] CompressedWork {
 public:
  CompressedWork(CompressedWork&& other) noexcept = default;
  CompressedWork& operator=(CompressedWork&& other) noexcept = default;

  // Blocks until all messages have come, adds them up on this thread, and returns what the call
  // cost this rank. Once. Throws what all_reduce() throws of operations.
  CompressionStatistics wait();

 private:
  friend CompressedWork start_all_reduce(Communicator& communicator, std::span<float> data,
                                         const CompressedAllReduceOptions& options);
  struct Call;
  explicit CompressedWork(std::shared_ptr<Call> call) : call_(std::move(call)) {}

  std::shared_ptr<Call> call_;  // Not shared: a unique_ptr could not end where Call is incomplete.
};

// An all_reduce of a vector by a codec, or power_sgd(), as CompressedReduction makes it of
// gradients; for those in training, see the option codec of DistributedDataParallel.
//   stretto::CompressionState state;
//   stretto::all_reduce(*comm, x, {.codec = stretto::top_k(), .state = &state, .name = "x"});
// In place; collective, blocks; returns what the call cost this rank. Ranks call in the same order
// with the same names, lengths and options. They agree about these in the first call with a name,
// and without a state in each: one small operation more, and another for
// CompressedExchange::automatic.
//
// Throws Mismatch, on all ranks, naming both sides, if they do not agree; InvalidArgument, on this
// rank alone and before anything has moved, if the codec is null or cannot keep what it
// does not send, if there are 2^32 elements or more, if a state comes without a name,
// if the operation is neither sum nor mean, or if the name stood for another length or other
// options before; and what operations throw, after which the communicator has been aborted and
// the residual is that of a call of which it is not known who has got what was sent.
// If NonFinite::stop ends the call, it throws InvalidArgument on all ranks alike: residuals and
// factors are what they were before it (for which a state keeps a second vector for each name), the
// call is counted, the vector holds anything, and the communicator stays usable.
CompressionStatistics all_reduce(Communicator& communicator, std::span<float> data,
                                 const CompressedAllReduceOptions& options);
// The same without waiting for messages: start, do something else, wait(). The vector belongs to
// the call until then, the state may serve other names meanwhile. Blocks only while ranks agree,
// and for all operations but the last where messages do not gather or have no fixed length. Ranks
// start in the same order, and may wait in any. Throws InvalidArgument, too, if the vector of this
// name is still on its way.
CompressedWork start_all_reduce(Communicator& communicator, std::span<float> data,
                                const CompressedAllReduceOptions& options);

// The residuals of this rank, by the names of vectors: each as long as its vector. One thread at a
// time; what has been started is not saved, loaded or forgotten before its wait(). With another
// communicator than in the call before, ranks agree anew, and each keeps the
// residuals that it has: so the survivors of a failure go on, without those of the dead.
class CompressionState {
 public:
  CompressionState() = default;
  CompressionState(CompressionState&& other) noexcept = default;
  CompressionState& operator=(CompressionState&& other) noexcept = default;

  // Of the vector of this name; empty if there is none, or its codec keeps nothing.
  std::span<const float> residual(const std::string& name) const;
  // The vector begins anew, of any length, on all ranks that say so before their next call.
  void forget(const std::string& name);

  // All residuals and the numbers of calls, bit for bit.
  std::vector<std::byte> save() const;
  // On all ranks: what there is gives way to what save() has returned on this rank. Throws
  // InvalidArgument, and changes nothing, if it is damaged. In the next call with a name,
  // all_reduce() throws InvalidArgument if it was saved by another rank, of another number of ranks
  // or of another length.
  void load(std::span<const std::byte> state);
  // What save() has returned on ranks 0, 1, 2, ..., for another number of ranks: the first gets the
  // sums of all residuals, in this order, and the others get zeros. For `op` mean, which divides by
  // the number of ranks, times the new number by the old. Throws InvalidArgument if these are no
  // such states, or `ranks` is 0.
  static std::vector<std::vector<std::byte>> redistribute(
      std::span<const std::vector<std::byte>> states, std::size_t ranks,
      ReduceOp op = ReduceOp::sum);

 private:
  friend CompressedWork start_all_reduce(Communicator& communicator, std::span<float> data,
                                         const CompressedAllReduceOptions& options);
  friend class CompressedWork;
  struct Vector;

  std::map<std::string, std::shared_ptr<Vector>> vectors_;
};

}  // namespace stretto

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
  // Keeps what a message leaves out until the next call. Null: it is lost.
  CompressionState* state = nullptr;
  // Name of the vector in the state; must not be empty if there is a state.
  std::string name = {};
  ReduceOp op = ReduceOp::sum;  // Or mean.
  NonFinite non_finite = NonFinite::send;
  CompressedExchange exchange = CompressedExchange::gather;
  std::uint64_t seed = 0;  // Of random choices; each call with a state makes other ones.
  std::optional<Duration> timeout = std::nullopt;  // Agreeing uses the communicator's.
};

// A compressed all_reduce in flight. Move-only. If it is destroyed without wait(), it ends like a
// Work, and the contents of the vector are unspecified.
class [[nodiscard]] CompressedWork {
 public:
  CompressedWork(CompressedWork&& other) noexcept = default;
  CompressedWork& operator=(CompressedWork&& other) noexcept = default;

  // Blocks until all messages have come, adds them up on this thread, and returns what the call
  // cost this rank. Call it once. Throws what all_reduce() throws if operations fail, and for
  // NonFinite::stop.
  CompressionStatistics wait();

 private:
  friend CompressedWork start_all_reduce(Communicator& communicator, std::span<float> data,
                                         const CompressedAllReduceOptions& options);
  struct Call;
  explicit CompressedWork(std::shared_ptr<Call> call) : call_(std::move(call)) {}

  std::shared_ptr<Call> call_;  // unique_ptr would need the complete type.
};

// An all_reduce of a vector by a codec, or by power_sgd(), as CompressedReduction does for
// gradients. (For gradients in training, set the option codec of DistributedDataParallel.)
//   stretto::CompressionState state;
//   stretto::all_reduce(*comm, x, {.codec = stretto::top_k(), .state = &state, .name = "x"});
// In place; collective, blocks; returns what the call cost this rank. Ranks make the calls in the
// same order, with the same names, lengths and options. They compare these in the first call with a
// name, and in each call without a state: one small operation more, and another one for
// CompressedExchange::automatic.
//
// Throws Mismatch on all ranks, naming both sides, if ranks differ in these. Throws InvalidArgument
// on this rank alone, before any data has moved, if the codec is null, if there is a state but
// residuals of the codec would grow without bound (Compressor::is_contraction()), if there are 2^32
// elements or more, if a state comes without a name, if the operation is neither sum nor mean, or
// if the name had another length or other options before. Throws what operations throw; then the
// communicator is aborted, and the residual assumes that the message was sent, although some ranks
// may not have received it.
// If NonFinite::stop ends the call, it throws InvalidArgument on all ranks. Residuals and factors
// are then as before the call (a state keeps a second vector for each name for this), the call is
// counted, the contents of the vector are unspecified, and the communicator stays usable.
CompressionStatistics all_reduce(Communicator& communicator, std::span<float> data,
                                 const CompressedAllReduceOptions& options);
// The same without waiting for messages: start, do something else, wait(). Until wait() the vector
// belongs to the call; the state may serve other names. Blocks only while ranks compare their
// calls, and, if messages are not gathered or have no fixed length, for all operations except the
// last. Ranks start calls in the same order, and may wait for them in any order. Also throws
// InvalidArgument if a vector of this name is still in flight.
CompressedWork start_all_reduce(Communicator& communicator, std::span<float> data,
                                const CompressedAllReduceOptions& options);

// The residuals of this rank, by the names of vectors; each is as long as its vector. One thread at
// a time. Do not save, load or forget a vector between start_all_reduce() and wait(). If a call
// uses another communicator than the one before, ranks compare their options again and each keeps
// its residuals; so the survivors of a failure can go on, without the residuals of the dead.
class CompressionState {
 public:
  CompressionState() = default;
  CompressionState(CompressionState&& other) noexcept = default;
  CompressionState& operator=(CompressionState&& other) noexcept = default;

  // The residual of this vector; empty if there is none, or if the codec leaves nothing out.
  std::span<const float> residual(const std::string& name) const;
  // The vector starts anew, of any length. Call it on all ranks before their next call.
  void forget(const std::string& name);

  // All residuals and the numbers of calls, bit for bit.
  std::vector<std::byte> save() const;
  // Replaces the state by what save() returned on this rank; call it on all ranks. Throws
  // InvalidArgument, and changes nothing, if `state` is damaged. If it was saved by another rank,
  // with another number of ranks, or with another length of a vector, the next all_reduce() of that
  // vector throws InvalidArgument.
  void load(std::span<const std::byte> state);
  // Converts what save() returned on ranks 0, 1, 2, ... for another number of ranks: the first rank
  // gets the sums of all residuals, added in this order, and the others get zeros. For `op` mean,
  // which divides by the number of ranks, residuals are multiplied by the new number / the old one.
  // Throws InvalidArgument if `states` are not such states, or `ranks` is 0.
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

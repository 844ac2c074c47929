// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/random.h"
#include "stretto/stretto.h"
#include "tools/bench/pattern.h"

namespace stretto::chaos {

// What ranks do together in one step. It is the same on all ranks, unless one differs on purpose.
struct Call {
  Collective collective = Collective::all_reduce;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::size_t count = 0;  // Elements of each rank's share.
  bool registered_input = false;
  bool registered_output = false;

  static Call draw(std::uint64_t seed, int ranks);
  // Draws a call, but with the collective of that name.
  static Call named(const std::string& name, std::uint64_t seed, int ranks);
  // The same call but for `field`: "root", "count", "dtype", "op"; or another "collective".
  Call differing(const std::string& field, int ranks) const;
};

inline constexpr std::array kDTypes = {DType::f32, DType::f64,  DType::i32,
                                       DType::u8,  DType::bf16, DType::f16};
inline constexpr std::array kOps = {ReduceOp::sum, ReduceOp::max, ReduceOp::min};
inline constexpr std::array<std::size_t, 6> kCounts = {1, 17, 300, 5000, 40000, 150000};
inline constexpr std::size_t kMaxElementBytes = 8;

inline Call Call::draw(std::uint64_t seed, int ranks) {
  Random random(seed);
  const auto one_of = [&](const auto& list) { return list[random.below(list.size())]; };
  Call call;
  call.collective = static_cast<Collective>(random.below(kCollectiveCount));
  call.dtype = one_of(kDTypes);
  call.op = one_of(kOps);
  call.root = static_cast<int>(random.below(static_cast<std::uint64_t>(ranks)));
  // Long calls are rare: most of the time should go into what happens between operations.
  call.count = kCounts[std::min(random.below(kCounts.size()), random.below(kCounts.size() + 2))];
  call.registered_input = random.below(2) == 0;
  call.registered_output = random.below(2) == 0;
  return call;
}

inline Call Call::named(const std::string& name, std::uint64_t seed, int ranks) {
  Call call = draw(seed, ranks);
  for (int number = 0; number < kCollectiveCount; ++number) {
    if (stretto::name(static_cast<Collective>(number)) == name) {
      call.collective = static_cast<Collective>(number);
      return call;
    }
  }
  throw std::runtime_error(fmt::format("there is no collective \"{}\"", name));
}

inline Call Call::differing(const std::string& field, int ranks) const {
  Call call = *this;
  if (field == "root") {
    call.root = (root + 1) % ranks;
  } else if (field == "count") {
    call.count = count + 1;
  } else if (field == "dtype") {
    call.dtype = dtype == DType::f32 ? DType::i32 : DType::f32;
  } else if (field == "op") {
    call.op = op == ReduceOp::max ? ReduceOp::min : ReduceOp::max;
  } else if (field == "collective") {
    call.collective =
        collective == Collective::all_gather ? Collective::all_reduce : Collective::all_gather;
  } else {
    throw std::runtime_error(fmt::format("a call has no field \"{}\"", field));
  }
  return call;
}

// The private and the registered memory of one rank, and what is done in it.
class Buffers {
 public:
  explicit Buffers(Communicator& comm)
      : bytes_(static_cast<std::size_t>(comm.size()) * (kCounts.back() + 1) * kMaxElementBytes),
        registered_input_(comm.allocate<std::byte>(bytes_)),
        registered_output_(comm.allocate<std::byte>(bytes_)),
        private_input_(bytes_),
        private_output_(bytes_) {}

  // Runs the call. Returns what is wrong with the result; empty if nothing is. Throws the call's
  // errors.
  std::string run(Communicator& comm, const Call& call, int step) {
    const int size = comm.size();
    const int me = comm.rank().value();
    const std::size_t element_bytes = size_bytes(call.dtype);
    const auto shares = static_cast<std::size_t>(has_shares(call.collective) ? size : 1);
    const bench::Shape shape =
        bench::shape_of(call.collective, size, shares * call.count * element_bytes, element_bytes);
    const View input(call.registered_input ? registered_input_.data() : private_input_.data(),
                     shape.input, call.dtype);
    const View output(call.registered_output ? registered_output_.data() : private_output_.data(),
                      shape.output, call.dtype);
    const bench::Pattern pattern(call.dtype, call.op, size);
    const auto number = static_cast<std::uint64_t>(step);
    pattern.fill(call.collective == Collective::broadcast ? output : input, 0, me, number);
    submit(comm, call, input, output).wait();
    const bool is_message = call.collective == Collective::point_to_point;
    const bool is_right =
        is_message ? size == 1 || pattern.is_input(output, 0, (me + size - 1) % size, number)
                   : pattern.is_output(call.collective, output, shape.share, me, number, call.root);
    return is_right ? ""
                    : fmt::format("{}({} {} [{}] root {})", name(call.collective), name(call.op),
                                  name(call.dtype), call.count, call.root);
  }

 private:
  static Work submit(Communicator& comm, const Call& call, const View& input, const View& output) {
    const Rank root = call.root;
    switch (call.collective) {
      case Collective::all_reduce:
        return comm.all_reduce(input, output, {.op = call.op});
      case Collective::reduce:
        return comm.reduce(input, output, {.op = call.op, .root = root});
      case Collective::reduce_scatter:
        return comm.reduce_scatter(input, output, {.op = call.op});
      case Collective::all_gather:
        return comm.all_gather(input, output);
      case Collective::gather:
        return comm.gather(input, output, {.root = root});
      case Collective::scatter:
        return comm.scatter(input, output, {.root = root});
      case Collective::all_to_all:
        return comm.all_to_all(input, output);
      case Collective::broadcast:
        return comm.broadcast(output, {.root = root});
      case Collective::barrier:
        return comm.barrier();
      case Collective::point_to_point:
        break;
    }
    // Each rank sends to the next one; there is no message to oneself.
    if (comm.size() == 1) return Work();
    const int next = (comm.rank().value() + 1) % comm.size();
    const int previous = (comm.rank().value() + comm.size() - 1) % comm.size();
    const std::array<Transfer, 2> ring = {Transfer::send(input, next),
                                          Transfer::recv(output, previous)};
    return comm.batch_send_recv(ring);
  }

  std::size_t bytes_;
  Buffer<std::byte> registered_input_;
  Buffer<std::byte> registered_output_;
  std::vector<std::byte> private_input_;
  std::vector<std::byte> private_output_;
};

}  // namespace stretto::chaos

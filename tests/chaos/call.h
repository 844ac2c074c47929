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

namespace stretto::chaos {

// What ranks do together in one step. Equal on all of them, unless one differs on purpose.
struct Call {
  Collective collective = Collective::all_reduce;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::size_t count = 0;  // Elements of each rank's share.
  bool registered_input = false;
  bool registered_output = false;

  static Call draw(std::uint64_t seed, int ranks);
  // One whose collective has that name.
  static Call named(const std::string& name, std::uint64_t seed, int ranks);
  // The same but for one field: "root", "count", "dtype" or "op"; or another "collective".
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
  // Long ones are rare: most of the time should go into what happens between operations.
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

// Calls `work` with a value of the C++ type of `dtype`, one of kDTypes.
template <class Visitor>
auto with_type(DType dtype, const Visitor& work) {
  switch (dtype) {
    case DType::f64:
      return work(double());
    case DType::i32:
      return work(std::int32_t());
    case DType::u8:
      return work(std::uint8_t());
    case DType::bf16:
      return work(BFloat16());
    case DType::f16:
      return work(Half());
    default:
      return work(float());
  }
}

// What a rank contributes at an index: small enough for sums over ranks to be exact in every dtype.
inline int contribution(int rank, std::size_t index, int step) {
  const std::size_t mixed = static_cast<std::size_t>(rank) * 5 + index * 7 + index / 4096 +
                            static_cast<std::size_t>(step) * 3;
  return static_cast<int>(mixed % 13);
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

  // Does the call and says what is wrong with the result; empty: nothing. Throws what it throws.
  std::string run(Communicator& comm, const Call& call, int step) {
    const auto ranks = static_cast<std::size_t>(comm.size());
    const View input(call.registered_input ? registered_input_.data() : private_input_.data(),
                     call.count * (longer(call, true) ? ranks : 1), call.dtype);
    const View output(call.registered_output ? registered_output_.data() : private_output_.data(),
                      call.count * (longer(call, false) ? ranks : 1), call.dtype);
    const int me = comm.rank().value();
    fill(call.collective == Collective::broadcast ? output : input, me, step);
    submit(comm, call, input, output).wait();
    return check(call, output, me, comm.size(), step);
  }

 private:
  // Whether the input (else the output) holds a share for every rank.
  static bool longer(const Call& call, bool input) {
    const Collective kind = call.collective;
    if (kind == Collective::all_to_all) return true;
    if (input) return kind == Collective::reduce_scatter || kind == Collective::scatter;
    return kind == Collective::all_gather || kind == Collective::gather;
  }

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
    // Everybody sends to the next rank; there is no message to oneself.
    if (comm.size() == 1) return Work();
    const int next = (comm.rank().value() + 1) % comm.size();
    const int previous = (comm.rank().value() + comm.size() - 1) % comm.size();
    const std::array<Transfer, 2> ring = {Transfer::send(input, next),
                                          Transfer::recv(output, previous)};
    return comm.batch_send_recv(ring);
  }

  static void fill(const View& data, int rank, int step) {
    with_type(data.dtype, [&](auto zero) {
      using T = decltype(zero);
      auto* elements = reinterpret_cast<T*>(data.data);
      for (std::size_t i = 0; i < data.count; ++i) {
        elements[i] = T(static_cast<float>(contribution(rank, i, step)));
      }
    });
  }

  // What should lie at an index of the output of rank `me`.
  static int expected(const Call& call, std::size_t index, int me, int ranks, int step) {
    const std::size_t share = index / call.count;
    const std::size_t within = index % call.count;
    const std::size_t mine = static_cast<std::size_t>(me) * call.count + within;
    const auto reduced = [&](std::size_t at) {
      int result = contribution(0, at, step);
      for (int r = 1; r < ranks; ++r) {
        const int other = contribution(r, at, step);
        result = call.op == ReduceOp::sum   ? result + other
                 : call.op == ReduceOp::max ? std::max(result, other)
                                            : std::min(result, other);
      }
      return result;
    };
    switch (call.collective) {
      case Collective::reduce_scatter:
        return reduced(mine);
      case Collective::all_gather:
      case Collective::gather:
        return contribution(static_cast<int>(share), within, step);
      case Collective::scatter:
        return contribution(call.root, mine, step);
      case Collective::all_to_all:
        return contribution(static_cast<int>(share), mine, step);
      case Collective::broadcast:
        return contribution(call.root, index, step);
      case Collective::point_to_point:
        return contribution((me + ranks - 1) % ranks, index, step);
      default:
        return reduced(index);
    }
  }

  static std::string check(const Call& call, const View& output, int me, int ranks, int step) {
    const bool only_root =
        call.collective == Collective::reduce || call.collective == Collective::gather;
    if ((only_root && me != call.root) || call.collective == Collective::barrier) return "";
    if (call.collective == Collective::point_to_point && ranks == 1) return "";
    return with_type(call.dtype, [&](auto zero) -> std::string {
      using T = decltype(zero);
      const auto* elements = reinterpret_cast<const T*>(output.data);
      for (std::size_t i = 0; i < output.count; ++i) {
        const auto is = static_cast<double>(static_cast<float>(elements[i]));
        const int wanted = expected(call, i, me, ranks, step);
        if (is != wanted) {
          return fmt::format("{}({} {} [{}] root {}): element {} is {}, not {}",
                             name(call.collective), name(call.op), name(call.dtype), call.count,
                             call.root, i, is, wanted);
        }
      }
      return "";
    });
  }

  std::size_t bytes_;
  Buffer<std::byte> registered_input_;
  Buffer<std::byte> registered_output_;
  std::vector<std::byte> private_input_;
  std::vector<std::byte> private_output_;
};

}  // namespace stretto::chaos

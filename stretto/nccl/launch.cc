// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/nccl/launch.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "stretto/base/check.h"

namespace stretto::nccl {
namespace {

using Kind = Step::Kind;

// NCCL's type for the reduction of a dtype, and how many of its numbers an element has.
struct Number {
  Type type;
  std::size_t parts = 1;
};

constexpr std::pair<DType, Number> kNumbers[] = {
    {DType::i8, {Type::i8}},       {DType::u8, {Type::u8}},   {DType::boolean, {Type::u8}},
    {DType::i32, {Type::i32}},     {DType::u32, {Type::u32}}, {DType::i64, {Type::i64}},
    {DType::u64, {Type::u64}},     {DType::f16, {Type::f16}}, {DType::bf16, {Type::bf16}},
    {DType::f32, {Type::f32}},     {DType::f64, {Type::f64}}, {DType::c64, {Type::f32, 2}},
    {DType::c128, {Type::f64, 2}},
};

std::optional<Number> number_of(DType dtype) {
  const auto* const found = std::ranges::find(kNumbers, dtype, &std::pair<DType, Number>::first);
  return found == std::end(kNumbers) ? std::nullopt : std::optional(found->second);
}

// NCCL's operation; nothing if it has none.
std::optional<RedOp> operation_of(ReduceOp op, DType dtype) {
  if (dtype == DType::boolean) {  // Elements are 0 and 1.
    if (op == ReduceOp::sum || op == ReduceOp::max || op == ReduceOp::bit_or) return kMax;
    if (op == ReduceOp::product || op == ReduceOp::min || op == ReduceOp::bit_and) return kMin;
    return std::nullopt;
  }
  if (op == ReduceOp::sum) return kSum;
  if (op == ReduceOp::mean) return kAverage;
  if (is_complex(dtype)) return std::nullopt;
  if (op == ReduceOp::product) return kProduct;
  if (op == ReduceOp::min) return kMin;
  if (op == ReduceOp::max) return kMax;
  return std::nullopt;
}

class Builder {
 public:
  Builder(const LibraryCall& call, int rank, int size)
      : call_(call),
        parts_(call.parts == nullptr ? kNoParts : *call.parts),
        rank_(static_cast<std::size_t>(rank)),
        size_(static_cast<std::size_t>(size)) {}

  Launch build() {
    choose_operation();
    switch (call_.operation.collective) {
      case Collective::all_reduce:
        on_entries(Kind::all_reduce);
        break;
      case Collective::reduce:
        on_entries(Kind::reduce);
        break;
      case Collective::broadcast:
        on_entries(Kind::broadcast);
        break;
      case Collective::reduce_scatter:
        reduce_scatter();
        break;
      case Collective::all_gather:
        all_gather();
        break;
      case Collective::gather:
      case Collective::scatter:
      case Collective::all_to_all:
        exchange();
        break;
      default:
        STRETTO_CHECK(false, "no collective that NCCL was said to run");
    }
    launch_.overwrites_sends =
        call_.operation.collective == Collective::all_to_all && writes_input();
    return std::move(launch_);
  }

 private:
  std::size_t element_bytes() const { return size_bytes(call_.operation.dtype); }
  bool is_root(std::size_t rank) const {
    return call_.operation.root == static_cast<std::int32_t>(rank);
  }
  bool has_targets() const { return !parts_.targets.empty(); }
  const std::byte* input() const { return source(0); }
  // Entry `index` of the operation's list: a rank's share, or a whole buffer.
  const std::byte* source(std::size_t index) const {
    if (!parts_.has_sources()) return call_.input;
    return index == 0 ? parts_.source.data : parts_.more[index - 1].data;
  }
  // Whether each rank's share has a buffer of its own. A factor makes a list of one buffer.
  bool has_source_list() const { return !parts_.more.empty(); }

  // Shares lie one behind the other, unless they are a list.
  const std::byte* source_of(std::size_t rank) const {
    return has_source_list() ? source(rank) : input() + offset(call_.counts, rank);
  }
  std::byte* target_of(std::size_t rank) const {
    if (has_targets()) return parts_.targets[rank].data;
    const bool exchanges = call_.operation.collective == Collective::all_to_all;
    return call_.output + offset(exchanges ? call_.received : call_.counts, rank);
  }
  std::size_t offset(const std::size_t* counts, std::size_t rank) const {
    std::size_t elements = 0;
    for (std::size_t r = 0; r < rank; ++r) elements += counts[r];
    return elements * element_bytes();
  }
  bool equal_shares() const {
    for (std::size_t r = 1; r < size_; ++r) {
      if (call_.counts[r] != call_.counts[0]) return false;
    }
    return true;
  }

  void choose_operation() {
    const OperationDescriptor& operation = call_.operation;
    if (!reduces(operation.collective)) return;
    launch_.op = operation_of(operation.op, operation.dtype).value_or(kSum);
    if (parts_.factor == 1) return;
    const bool divides = operation.op == ReduceOp::mean;
    launch_.factor = divides ? parts_.factor / static_cast<double>(size_) : parts_.factor;
  }

  void add(Kind kind, const std::byte* from, std::byte* to, std::size_t elements,
           std::size_t peer = 0) {
    if (elements == 0) return;
    Step step{.kind = kind, .from = from, .to = to, .peer = static_cast<int>(peer)};
    if (kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter) {
      const Number number = number_of(call_.operation.dtype).value_or(Number{Type::u8});
      step.type = number.type;
      step.count = elements * number.parts;
    } else {
      step.count = elements * element_bytes();
    }
    launch_.steps.push_back(step);
  }

  // Runs on whole buffers: one, or those of a list.
  void on_entries(Kind kind) {
    const auto root = static_cast<std::size_t>(std::max(0, call_.operation.root));
    if (!has_targets()) return add(kind, input(), call_.output, call_.operation.count, root);
    for (std::size_t i = 0; i < parts_.targets.size(); ++i) {
      const View& target = parts_.targets[i];
      add(kind, parts_.has_sources() ? source(i) : target.data, target.data, target.count, root);
    }
  }

  void reduce_scatter() {
    if (!has_source_list() && equal_shares()) {
      return add(Kind::reduce_scatter, input(), call_.output, call_.counts[0]);
    }
    for (std::size_t r = 0; r < size_; ++r) {
      add(Kind::reduce, source_of(r), r == rank_ ? call_.output : nullptr, call_.counts[r], r);
    }
  }

  void all_gather() {
    if (!has_targets() && equal_shares()) {
      return add(Kind::all_gather, input(), call_.output, call_.counts[0]);
    }
    for (std::size_t r = 0; r < size_; ++r) {
      add(Kind::broadcast, r == rank_ ? input() : target_of(r), target_of(r), call_.counts[r], r);
    }
  }

  // Sends and receives, where only some pairs of ranks share data.
  void exchange() {
    const Collective collective = call_.operation.collective;
    for (std::size_t r = 0; r < size_; ++r) {
      if (collective == Collective::all_to_all) {
        add(Kind::send, source_of(r), nullptr, call_.counts[r], r);
        add(Kind::receive, nullptr, target_of(r), call_.received[r], r);
      } else if (collective == Collective::gather) {
        if (is_root(r)) add(Kind::send, input(), nullptr, call_.counts[rank_], r);
        if (is_root(rank_)) add(Kind::receive, nullptr, target_of(r), call_.counts[r], r);
      } else {
        if (is_root(rank_)) add(Kind::send, source_of(r), nullptr, call_.counts[r], r);
        if (is_root(r)) add(Kind::receive, nullptr, call_.output, call_.counts[rank_], r);
      }
    }
    drop_message_to_itself();
  }

  // A share that stays where it is needs no message.
  void drop_message_to_itself() {
    const std::byte* sent = nullptr;
    const std::byte* received = nullptr;
    for (const Step& step : launch_.steps) {
      if (step.peer != static_cast<int>(rank_)) continue;
      if (step.kind == Kind::send) sent = step.from;
      if (step.kind == Kind::receive) received = step.to;
    }
    if (sent == nullptr || sent != received) return;
    std::erase_if(launch_.steps,
                  [&](const Step& step) { return step.peer == static_cast<int>(rank_); });
  }

  bool writes_input() const {
    for (const Step& sent : launch_.steps) {
      if (sent.kind != Kind::send) continue;
      for (const Step& other : launch_.steps) {
        if (other.kind != Kind::receive) continue;
        if (sent.from < other.to + other.count && other.to < sent.from + sent.count) return true;
      }
    }
    return false;
  }

  static inline const BufferParts kNoParts;

  const LibraryCall& call_;
  const BufferParts& parts_;
  std::size_t rank_;
  std::size_t size_;
  Launch launch_;
};

}  // namespace

const char* refusal(const OperationDescriptor& operation, double factor) {
  if (!reduces(operation.collective)) return "";
  const bool has_it = number_of(operation.dtype) && operation_of(operation.op, operation.dtype);
  if (!has_it) {
    return "has no such reduction for this dtype; copy the data to memory of the host, where "
           "stretto's own schedules run it";
  }
  const bool multiplies = operation.op == ReduceOp::sum || operation.op == ReduceOp::mean;
  if (factor == 1 || multiplies) return "";
  return "multiplies by a factor in sums and means only; multiply on the device before";
}

Launch make_launch(const LibraryCall& call, int rank, int size) {
  return Builder(call, rank, size).build();
}

}  // namespace stretto::nccl

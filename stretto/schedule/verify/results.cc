// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/verify/parts.h"

#include <algorithm>
#include <vector>

#include "stretto/base/rank_vector.h"

namespace stretto::schedule {
namespace {

// The values in the slots of all ranks.
class SlotValues {
 public:
  SlotValues(std::span<const Schedule> schedules, bool in_place, ExpressionPool& pool)
      : in_place_(in_place), chunk_count_(schedules.front().chunk_count) {
    for (const Schedule& schedule : schedules) {
      values_.emplace_back(2 * chunk_count_ + schedule.raw_slots + schedule.partial_slots, kEmpty);
      raw_slots_.push_back(schedule.raw_slots);
      fill_input(schedule, pool);
    }
  }

  Expression& at(const Place& place) {
    const auto rank = static_cast<std::size_t>(place.rank);
    return values_[rank][index_of(place)];
  }

 private:
  void fill_input(const Schedule& schedule, ExpressionPool& pool) {
    const Rank rank = schedule.rank;
    for (std::int32_t c = 0; c < chunk_count_; ++c) {
      if (!input_holds(schedule, rank, c)) continue;
      at({rank, {Buffer::input, c, c}}) = pool.leaf(rank, c);
    }
  }

  std::size_t index_of(const Place& place) const {
    const auto index = static_cast<std::size_t>(place.slot.index);
    const auto chunks = static_cast<std::size_t>(chunk_count_);
    switch (place.slot.buffer) {
      case Buffer::input:
        return in_place_ ? chunks + index : index;
      case Buffer::output:
        return chunks + index;
      case Buffer::raw:
        return 2 * chunks + index;
      case Buffer::partial:
        break;
    }
    return 2 * chunks + raw_slots_[place.rank] + index;
  }

  bool in_place_;
  std::int32_t chunk_count_;
  RankVector<std::int32_t> raw_slots_;
  std::vector<std::vector<Expression>> values_;
};

class SymbolicRun {
 public:
  SymbolicRun(const JointSchedule& joint, bool in_place, ExpressionPool& pool)
      : joint_(joint), pool_(pool), memory_(joint.schedules(), in_place, pool) {}

  Status run(const JointRun& execution) {
    for (const std::int32_t step : execution.order) STRETTO_RETURN_IF_ERROR(run_step(step));
    return {};
  }

  Expression output(Rank rank, ChunkIndex chunk) {
    return memory_.at({rank, {Buffer::output, chunk.value(), chunk}});
  }

 private:
  Status run_step(std::int32_t index) {
    const Step& step = joint_.step(index);
    const Schedule& schedule = joint_.schedule_of(index);
    const auto sources = schedule.sources(step);
    operands_.clear();
    for (const Place& source : sources) {
      STRETTO_RETURN_IF_ERROR(check_read(index, source));
      operands_.push_back(memory_.at(source));
    }
    if (operands_.empty()) return {};
    if (step.kind == StepKind::send) {
      const std::int32_t receive = joint_.partner(index);
      write(joint_.schedule_of(receive).targets(joint_.step(receive)), operands_.front());
      return {};
    }
    if (step.kind == StepKind::copy) {
      write(schedule.targets(step), operands_.front());
      return {};
    }
    if (std::ranges::any_of(operands_, [this](Expression e) { return pool_.is_finished(e); })) {
      return refusal("{} reduces what is finished already; it would be divided twice",
                     joint_.describe(index));
    }
    const Expression value = pool_.tree(operands_);
    write(schedule.targets(step), step.completes ? pool_.finished(value) : value);
    return {};
  }

  void write(std::span<const Place> targets, Expression value) {
    for (const Place& target : targets) memory_.at(target) = value;
  }

  Status check_read(std::int32_t index, const Place& place) {
    const Expression value = memory_.at(place);
    if (value == kEmpty) {
      return refusal("{} reads what nothing has written", joint_.describe(index));
    }
    if (place.slot.buffer == Buffer::input && value != pool_.leaf(place.rank, place.slot.chunk)) {
      return refusal("{} reads an input that an output has overwritten", joint_.describe(index));
    }
    if (pool_.chunk_of(value) != place.slot.chunk) {
      return refusal("{} finds chunk {}", joint_.describe(index), pool_.chunk_of(value).value());
    }
    return {};
  }

  const JointSchedule& joint_;
  ExpressionPool& pool_;
  SlotValues memory_;
  std::vector<Expression> operands_;  // Of one step.
};

// Compares output chunks with what they must be.
class ResultCheck {
 public:
  ResultCheck(const Schedule& head, ExpressionPool& pool) : head_(head), pool_(pool) {}

  // Must be called for the same chunk of all ranks, one rank after the other. A value equal to an
  // accepted one is not checked again.
  Status check(Rank rank, ChunkIndex chunk, Expression value) {
    if (value != kEmpty && value == accepted_ && pool_.chunk_of(value) == chunk) return {};
    const auto found = fmt::format("output chunk {} on rank {}", chunk.value(), rank.value());
    if (value == kEmpty) return refusal("{} is never written", found);
    if (pool_.chunk_of(value) != chunk) {
      return refusal("{} holds chunk {}", found, pool_.chunk_of(value).value());
    }
    // If the collective reduces nothing, only one rank has an input of this chunk, so the value is
    // right.
    if (head_.order != Order::none) STRETTO_RETURN_IF_ERROR(check_reduced(found, rank, value));
    accepted_ = value;
    return {};
  }

 private:
  Status check_reduced(const std::string& found, Rank rank, Expression value) {
    STRETTO_RETURN_IF_ERROR(check_contributions(found, value));
    if (!pool_.is_finished(value)) {
      return refusal("{} is not divided: no step completes it", found);
    }
    const Expression canonical = canonical_tree(pool_.chunk_of(value));
    if (head_.order == Order::canonical && value != canonical) {
      return refusal("{} is combined as {}; the canonical order is {}", found, pool_.text(value),
                     pool_.text(canonical));
    }
    // All ranks must have the same value, in any order of combination.
    if (head_.collective == Collective::all_reduce && rank != 0 && value != accepted_) {
      return refusal("{} is combined as {}, but on rank 0 as {}", found, pool_.text(value),
                     pool_.text(accepted_));
    }
    return {};
  }

  Status check_contributions(const std::string& found, Expression value) {
    RankVector<int> times(head_.rank_count);
    for (const Rank rank : pool_.ranks(value)) ++times[rank];
    for (std::size_t rank = 0; rank < times.size(); ++rank) {
      if (times[rank] == 0) return refusal("{} lacks rank {}", found, rank);
      if (times[rank] > 1) {
        return refusal("{} holds rank {} {}", found, rank,
                       times[rank] == 2 ? "twice" : fmt::format("{} times", times[rank]));
      }
    }
    return {};
  }

  Expression canonical_tree(ChunkIndex chunk) {
    std::vector<Expression> leaves;
    for (int rank = 0; rank < head_.rank_count; ++rank) leaves.push_back(pool_.leaf(rank, chunk));
    return pool_.finished(pool_.tree(leaves));
  }

  const Schedule& head_;
  ExpressionPool& pool_;
  Expression accepted_ = kEmpty;
};

}  // namespace

Status check_results(const JointSchedule& joint, const JointRun& execution, bool in_place,
                     ExpressionPool& pool) {
  SymbolicRun run(joint, in_place, pool);
  STRETTO_RETURN_IF_ERROR(run.run(execution));
  const Schedule& head = joint.schedules().front();
  ResultCheck results(head, pool);
  for (std::int32_t chunk = 0; chunk < head.chunk_count; ++chunk) {
    for (std::int32_t rank = 0; rank < head.rank_count; ++rank) {
      if (!output_holds(head, rank, chunk)) continue;
      STRETTO_RETURN_IF_ERROR(results.check(rank, chunk, run.output(rank, chunk)));
    }
  }
  return {};
}

Status check_barrier(const JointSchedule& joint, const JointRun& execution) {
  const std::size_t n = joint.schedules().size();
  // A signal tells its receiver of all ranks that its sender has surely heard of: itself, and the
  // ranks that earlier receives and syncs in its list told it of. A sync tells each of its ranks
  // what any of them knew.
  std::vector<std::vector<bool>> heard(joint.step_count());
  auto known_before = [&](std::size_t rank, std::int32_t end) {
    std::vector<bool> known(n);
    known[rank] = true;
    for (std::int32_t step = joint.first_step(rank); step < end; ++step) {
      for (std::size_t other = 0; other < heard[step].size(); ++other) {
        if (heard[step][other]) known[other] = true;
      }
    }
    return known;
  };
  auto add_known_before = [&](std::vector<bool>& known, std::int32_t step) {
    const auto more = known_before(joint.rank_of(step), step);
    for (std::size_t rank = 0; rank < n; ++rank) known[rank] = known[rank] || more[rank];
  };
  for (std::size_t i = 0; i < execution.order.size();) {
    const std::int32_t step = execution.order[i];
    const StepKind kind = joint.step(step).kind;
    // In `order`, the syncs of the ranks of a team follow each other.
    const std::size_t together = kind == StepKind::sync ? joint.schedule_of(step).team.size() : 1;
    const auto ended = std::span(execution.order).subspan(i, together);
    i += together;
    if (kind != StepKind::send && kind != StepKind::sync) continue;
    std::vector<bool> known(n);
    for (const std::int32_t each : ended) add_known_before(known, each);
    for (const std::int32_t each : ended) {
      heard[kind == StepKind::send ? joint.partner(each) : each] = known;
    }
  }
  for (std::size_t rank = 0; rank < n; ++rank) {
    const auto known = known_before(rank, joint.first_step(rank + 1));
    const auto unheard = std::ranges::find(known, false);
    if (unheard == known.end()) continue;
    return refusal("rank {} leaves without knowing that rank {} has come", rank,
                   unheard - known.begin());
  }
  return {};
}

}  // namespace stretto::schedule

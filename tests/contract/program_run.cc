// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/contract/program_run.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "stretto/base/rank_vector.h"
#include "tests/support/on_threads.h"

namespace stretto::testing {
namespace {

constexpr std::size_t kInFlightMax = 12;
// Long enough that only stuck operations take it; short enough for shortening a stuck program.
constexpr std::chrono::seconds kStuck(3);

Problem problem_of(const ProgramStep& step, int ranks) {
  static constexpr std::array kCollectives = {
      Collective::all_reduce, Collective::reduce,  Collective::reduce_scatter,
      Collective::all_gather, Collective::gather,  Collective::scatter,
      Collective::broadcast,  Collective::barrier, Collective::all_to_all};
  static const auto kReductions = reductions();
  const auto& [dtype, op] = kReductions[step.what / kCollectives.size() % kReductions.size()];
  Problem problem{.collective = kCollectives[step.what % kCollectives.size()],
                  .dtype = dtype,
                  .op = op,
                  .ranks = ranks,
                  .root = static_cast<int>(step.rank % static_cast<unsigned>(ranks)),
                  .count = step.count,
                  .registered = step.what % 5 == 0,
                  .in_place = step.flag};
  if (!reduces(problem.collective)) problem.op = ReduceOp::sum;
  if (problem.collective == Collective::barrier) problem.count = 0;
  if (!has_shares(problem.collective)) return problem;
  problem = with_equal_shares(problem, step.count % 101);
  for (std::size_t i = 0; step.what % 2 == 0 && i < problem.shares.size(); ++i) {
    problem.shares[i] = (step.count + i * 37) % 101;
  }
  return problem;
}

std::vector<std::uint8_t> pattern(std::size_t count, int rank, std::size_t number) {
  std::vector<std::uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::uint8_t>(i * 3 + static_cast<std::size_t>(rank) * 41 + number * 7);
  }
  return bytes;
}

using Messages = std::vector<std::vector<std::uint8_t>>;

}  // namespace

std::ostream& operator<<(std::ostream& out, const ProgramStep& step) {
  static constexpr std::array kNames = {"collective", "message",    "any_source", "batch",
                                        "list",       "make_group", "drop_group", "settle"};
  return out << kNames[static_cast<std::size_t>(step.kind)] << "(group " << step.group << ", what "
             << step.what << ", count " << step.count << ", rank " << step.rank << ", sleeper "
             << step.sleeper << (step.flag ? ", flag)" : ")");
}

ProgramRun::ProgramRun(std::vector<std::unique_ptr<Communicator>> ranks) : to_do_(ranks.size()) {
  auto& world = *teams_.emplace_back(std::make_unique<Team>());
  for (int rank = 0; std::cmp_less(rank, ranks.size()); ++rank) world.members.push_back(rank);
  world.comms = std::move(ranks);
}

// Stuck operations end with their communicators; only then may their buffers be freed.
ProgramRun::~ProgramRun() {
  to_do_.clear();
  teams_.clear();
}

std::string ProgramRun::run(const std::vector<ProgramStep>& program) {
  for (const ProgramStep& step : program) {
    add(step);
    wake_all_but(step.sleeper);
    const bool full = in_flight_.size() >= kInFlightMax;
    if (!full && step.kind != ProgramStep::Kind::settle) continue;
    std::string failure = settle();
    if (!failure.empty()) return failure;
  }
  return settle();
}

void ProgramRun::add(const ProgramStep& step) {
  Team& team = *teams_[step.group % teams_.size()];
  switch (step.kind) {
    case ProgramStep::Kind::collective:
      return add_collective(step, team);
    case ProgramStep::Kind::message:
      return team.size() > 1 ? add_message(step, team) : void();
    case ProgramStep::Kind::any_source:
      return team.size() > 1 ? add_any_source(step, team) : void();
    case ProgramStep::Kind::batch:
      return team.size() > 1 ? add_batch(step, team) : void();
    case ProgramStep::Kind::list:
      return add_list(step, team);
    case ProgramStep::Kind::make_group:
      return teams_.size() < 6 ? make_team(step, team) : void();
    case ProgramStep::Kind::drop_group: {
      const std::size_t index = step.group % teams_.size();
      // A rank may only leave when the others have got all that they need from it.
      if (index == 0 || !settle().empty()) return;
      teams_.erase(teams_.begin() + static_cast<std::ptrdiff_t>(index));
      return;
    }
    case ProgramStep::Kind::settle:
      return;
  }
}

std::shared_ptr<Work> ProgramRun::later(Team& team, int member, const Start& start) {
  auto work = std::make_shared<Work>();
  const auto at = static_cast<std::size_t>(member);
  Communicator* comm = team.comms[at].get();
  to_do_[static_cast<std::size_t>(team.members[at])].push_back(
      [=] { *work = start(*comm, member); });
  return work;
}

void ProgramRun::on_all_members(InFlight& entry, Team& team, const Start& start) {
  for (int member = 0; member < team.size(); ++member) {
    entry.works.push_back(later(team, member, start));
  }
}

void ProgramRun::add_collective(const ProgramStep& step, Team& team) {
  const auto oracle = std::make_shared<const Oracle>(problem_of(step, team.size()));
  const auto trials = std::make_shared<RankVector<std::unique_ptr<Trial>>>();
  for (const auto& comm : team.comms) trials->push_back(std::make_unique<Trial>(*comm, *oracle));
  InFlight& entry = in_flight_.emplace_back();
  entry.name = describe(oracle->problem());
  on_all_members(entry, team,
                 [trials](Communicator&, int rank) { return (*trials)[rank]->start(); });
  entry.failure = [oracle, trials]() -> std::string {
    for (const auto& trial : *trials) {
      std::string failure = trial->failure();
      if (!failure.empty()) return failure;
    }
    return {};
  };
}

void ProgramRun::add_message(const ProgramStep& step, Team& team) {
  const int from = static_cast<int>(step.rank) % team.size();
  const int to = (from + 1 + static_cast<int>(step.what) % (team.size() - 1)) % team.size();
  const int tag = static_cast<int>(step.what % 3);
  const auto data = std::make_shared<Messages>();
  data->push_back(pattern(step.count, from, step.what));
  data->emplace_back(step.count);
  InFlight& entry = in_flight_.emplace_back();
  entry.name = fmt::format("message of {} bytes from {} to {}, tag {}", step.count, from, to, tag);
  entry.works = {
      later(team, from,
            [=](Communicator& comm, int) { return comm.send((*data)[0], {.to = to, .tag = tag}); }),
      later(team, to, [=](Communicator& comm, int) {
        return comm.recv((*data)[1], {.from = from, .tag = tag});
      })};
  entry.failure = [data] {
    return (*data)[0] == (*data)[1] ? "" : std::string("another message arrived");
  };
}

// All other ranks send two messages each to one rank, which receives them from any source.
void ProgramRun::add_any_source(const ProgramStep& step, Team& team) {
  const int to = static_cast<int>(step.rank) % team.size();
  const int tag = ++any_source_tags_;
  const auto sent = std::make_shared<RankVector<Messages>>();
  const auto received = std::make_shared<Messages>();
  std::vector<std::shared_ptr<Work>> takes;
  InFlight& entry = in_flight_.emplace_back();
  entry.name = fmt::format("messages of {} bytes from all to {}", step.count, to);
  received->resize(2 * static_cast<std::size_t>(team.size() - 1), pattern(step.count, 99, 99));
  for (int from = 0; from < team.size(); ++from) {
    sent->push_back({pattern(step.count, from, 0), pattern(step.count, from, 1)});
    for (std::size_t number = 0; from != to && number < 2; ++number) {
      entry.works.push_back(later(team, from, [=](Communicator& comm, int rank) {
        return comm.send((*sent)[rank][number], {.to = to, .tag = tag});
      }));
    }
  }
  for (std::size_t i = 0; i < received->size(); ++i) {
    takes.push_back(later(team, to, [=](Communicator& comm, int) {
      return comm.recv((*received)[i], {.from = kAnyRank, .tag = tag});
    }));
  }
  entry.works.insert(entry.works.end(), takes.begin(), takes.end());
  entry.failure = [sent, received, takes]() -> std::string {
    std::vector<std::size_t> taken(sent->size());
    for (std::size_t i = 0; i < takes.size(); ++i) {
      if (!takes[i]->source()) return "a receive does not say whose message it was";
      const auto from = static_cast<std::size_t>(*takes[i]->source());
      if (taken[from] == 2) return fmt::format("rank {} sent two messages, not three", from);
      if ((*received)[i] != (*sent)[from][taken[from]++]) {
        return fmt::format("receive {} does not have the next message of rank {}", i, from);
      }
    }
    return {};
  };
}

// Every rank sends to the next rank and receives from the previous one.
void ProgramRun::add_batch(const ProgramStep& step, Team& team) {
  const int size = team.size();
  const auto sent = std::make_shared<Messages>();
  const auto received = std::make_shared<Messages>();
  for (int rank = 0; rank < size; ++rank) {
    sent->push_back(pattern(step.count, rank, step.what));
    received->emplace_back(step.count);
  }
  InFlight& entry = in_flight_.emplace_back();
  entry.name = fmt::format("batch of {} bytes on {} ranks", step.count, size);
  on_all_members(entry, team, [=](Communicator& comm, int rank) {
    const auto at = static_cast<std::size_t>(rank);
    const std::array transfers = {Transfer::send((*sent)[at], (rank + 1) % size, 7),
                                  Transfer::recv((*received)[at], (rank + size - 1) % size, 7)};
    return comm.batch_send_recv(transfers);
  });
  entry.failure = [=]() -> std::string {
    for (std::size_t rank = 0; rank < sent->size(); ++rank) {
      if ((*received)[(rank + 1) % sent->size()] != (*sent)[rank]) return "a wrong message";
    }
    return {};
  };
}

// Buffers of different dtypes and sizes as one all-reduce.
void ProgramRun::add_list(const ProgramStep& step, Team& team) {
  const auto oracles = std::make_shared<std::vector<Oracle>>();
  for (const DType dtype : {DType::f32, DType::i64, DType::f32, DType::bf16}) {
    oracles->emplace_back(
        Problem{.dtype = dtype, .ranks = team.size(), .count = step.count / (oracles->size() + 1)});
  }
  const auto buffers = std::make_shared<RankVector<std::vector<Bytes>>>();
  for (int rank = 0; rank < team.size(); ++rank) {
    auto& own = buffers->emplace_back();
    for (const Oracle& oracle : *oracles) own.push_back(oracle.input_of(rank));
  }
  InFlight& entry = in_flight_.emplace_back();
  entry.name = fmt::format("coalesced all_reduce of {} and less", step.count);
  on_all_members(entry, team, [=](Communicator& comm, int rank) {
    std::vector<View> views;
    for (std::size_t i = 0; i < oracles->size(); ++i) {
      const Problem& problem = (*oracles)[i].problem();
      views.emplace_back((*buffers)[rank][i].data(), problem.count, problem.dtype);
    }
    return comm.all_reduce_coalesced(views);
  });
  entry.failure = [=]() -> std::string {
    for (std::size_t rank = 0; rank < buffers->size(); ++rank) {
      for (std::size_t i = 0; i < oracles->size(); ++i) {
        if ((*buffers)[rank][i] == (*oracles)[i].expected_of(static_cast<int>(rank))) continue;
        return fmt::format("buffer {} of rank {} is wrong", i, rank);
      }
    }
    return {};
  };
}

// Makes a group of some of a group's ranks, or splits its ranks in two halves. Making groups
// blocks, so it takes threads; operations in flight stay in flight.
void ProgramRun::make_team(const ProgramStep& step, Team& parent) {
  wake_all_but(static_cast<unsigned>(to_do_.size()));
  const auto chosen = [&](int member) {
    return ((step.what >> static_cast<unsigned>(member)) & 1u) != 0;
  };
  std::vector<Rank> list;
  for (int member = parent.size() - 1; member >= 0; --member) {
    if (chosen(member) || member == 0) list.emplace_back(member);
  }
  std::vector<std::unique_ptr<Communicator>> made(parent.members.size());
  on_threads(parent.size(), [&](int member) {
    const auto at = static_cast<std::size_t>(member);
    made[at] = step.flag ? parent.comms[at]->split({.color = chosen(member)})
                         : parent.comms[at]->new_group(list);
  });
  for (const bool half : {false, true}) {
    auto team = std::make_unique<Team>();
    for (int member = 0; member < parent.size(); ++member) {
      const bool belongs = step.flag ? chosen(member) == half : half;
      const auto at = static_cast<std::size_t>(member);
      if (!belongs || made[at] == nullptr) continue;
      const auto place = static_cast<std::size_t>(made[at]->rank());
      team->members.resize(std::max(team->members.size(), place + 1));
      team->comms.resize(team->members.size());
      team->members[place] = parent.members[at];
      team->comms[place] = std::move(made[at]);
    }
    if (team->size() > 0) teams_.push_back(std::move(team));
  }
}

void ProgramRun::wake_all_but(unsigned sleeper) {
  for (std::size_t rank = 0; rank < to_do_.size(); ++rank) {
    if (rank == sleeper) continue;
    for (; !to_do_[rank].empty(); to_do_[rank].pop_front()) to_do_[rank].front()();
  }
}

std::string ProgramRun::settle() {
  wake_all_but(static_cast<unsigned>(to_do_.size()));
  const Deadline deadline = Deadline::after(kStuck);
  for (InFlight& entry : in_flight_) {
    for (bool ended = false; !ended;) {
      ended = true;
      for (const auto& work : entry.works) ended = work->done() && ended;
      // This operation may wait for others: poll() on these drives those of all groups.
      for (const auto& comm : teams_.front()->comms) comm->poll();
      if (deadline.passed()) return entry.name + " does not end";
    }
    for (const auto& work : entry.works) {
      const Status status = work->wait_status();
      if (!status.ok()) return fmt::format("{} failed: {}", entry.name, status.message());
    }
    std::string failure = entry.failure();
    if (!failure.empty()) return entry.name + ": " + failure;
  }
  in_flight_.clear();
  return {};
}

}  // namespace stretto::testing

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Random programs of collectives, messages and groups give the values of a serial oracle. A program
// that does not is made as short as it can be; RC_PARAMS, as printed, runs it again.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "tests/contract/program_run.h"
#include "tests/contract/rank_communicators.h"
#include "tests/support/seed.h"

namespace stretto::testing {
namespace {

rc::Gen<ProgramStep> step_generator() {
  // Mostly collectives; sizes up to a few segments of the smallest kind, most of them small.
  const auto kinds =
      rc::gen::weightedElement<ProgramStep::Kind>({{8, ProgramStep::Kind::collective},
                                                   {4, ProgramStep::Kind::message},
                                                   {1, ProgramStep::Kind::any_source},
                                                   {1, ProgramStep::Kind::batch},
                                                   {1, ProgramStep::Kind::list},
                                                   {1, ProgramStep::Kind::make_group},
                                                   {1, ProgramStep::Kind::drop_group},
                                                   {1, ProgramStep::Kind::settle}});
  const auto counts = rc::gen::weightedOneOf<unsigned>(
      {{6, rc::gen::inRange(0u, 200u)}, {1, rc::gen::inRange(0u, 70000u)}});
  return rc::gen::build<ProgramStep>(rc::gen::set(&ProgramStep::kind, kinds),
                                     rc::gen::set(&ProgramStep::group, rc::gen::inRange(0u, 6u)),
                                     rc::gen::set(&ProgramStep::what, rc::gen::inRange(0u, 1000u)),
                                     rc::gen::set(&ProgramStep::count, counts),
                                     rc::gen::set(&ProgramStep::rank, rc::gen::inRange(0u, 5u)),
                                     rc::gen::set(&ProgramStep::sleeper, rc::gen::inRange(0u, 9u)),
                                     rc::gen::set(&ProgramStep::flag));
}

class RandomPrograms : public ::testing::TestWithParam<std::tuple<int, RankMaker>> {};

TEST_P(RandomPrograms, EqualTheSerialOracle) {
  const auto& [size, maker] = GetParam();
  // rapidcheck reads RC_PARAMS at its first check only. Where several suites run in one process,
  // the RC_PARAMS that a failure prints repeats that failure.
  ::setenv("RC_PARAMS", ("seed=" + std::to_string(draw_seed())).c_str(), /*replace=*/0);
  EXPECT_TRUE(rc::check([&, size = size, &make = maker.make] {
    const auto program = *rc::gen::container<std::vector<ProgramStep>>(step_generator());
    ProgramRun run(make(size));
    RC_ASSERT(run.run(program) == "");
  })) << size
      << " ranks, " << maker.name;
}

std::string name_of(const ::testing::TestParamInfo<RandomPrograms::ParamType>& tested) {
  return "ranks" + std::to_string(std::get<0>(tested.param)) + "_" + std::get<1>(tested.param).name;
}
// `alone`: the kinds whose ranks need no thread but this one; otherwise the others.
std::vector<RankMaker> makers(bool alone) {
  std::vector<RankMaker> makers = RankMaker::all();
  std::erase_if(makers, [&](const RankMaker& maker) {
    const bool has_threads = maker.name == "library" || maker.name.ends_with("_progress_thread");
    return has_threads == alone;
  });
  return makers;
}
INSTANTIATE_TEST_SUITE_P(, RandomPrograms,
                         ::testing::Combine(::testing::Range(1, 6),
                                            ::testing::ValuesIn(makers(true))),
                         name_of);
INSTANTIATE_TEST_SUITE_P(WithOtherThreads, RandomPrograms,
                         ::testing::Combine(::testing::Values(2, 3),
                                            ::testing::ValuesIn(makers(false))),
                         name_of);

}  // namespace
}  // namespace stretto::testing

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Random programs of collectives, messages and groups give what a serial oracle says. A program
// that does not is made as short as it can be; RC_PARAMS, as printed, runs it again.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/contract/program_run.h"

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

class RandomPrograms : public ::testing::TestWithParam<std::tuple<int, bool, ProgressThread>> {};

TEST_P(RandomPrograms, EqualTheSerialOracle) {
  const int size = std::get<0>(GetParam());
  const bool shared_memory = std::get<1>(GetParam());
  const ProgressThread progress_thread = std::get<2>(GetParam());
  EXPECT_TRUE(rc::check([&] {
    const auto program = *rc::gen::container<std::vector<ProgramStep>>(step_generator());
    ProgramRun run(size, shared_memory, progress_thread);
    RC_ASSERT(run.run(program) == "");
  })) << size
      << (shared_memory ? " ranks with" : " ranks without") << " shared memory";
}

std::string name_of(const ::testing::TestParamInfo<RandomPrograms::ParamType>& tested) {
  return "ranks" + std::to_string(std::get<0>(tested.param)) +
         (std::get<1>(tested.param) ? "_mapped" : "_messages");
}
INSTANTIATE_TEST_SUITE_P(, RandomPrograms,
                         ::testing::Combine(::testing::Range(1, 6), ::testing::Bool(),
                                            ::testing::Values(ProgressThread::never)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(WithProgressThread, RandomPrograms,
                         ::testing::Combine(::testing::Values(2, 3), ::testing::Bool(),
                                            ::testing::Values(ProgressThread::always)),
                         name_of);

}  // namespace
}  // namespace stretto::testing

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/group/idle_wait.h"

#include <gtest/gtest.h>

namespace stretto::group {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

ArrivalForecast after(std::initializer_list<Duration> waits) {
  ArrivalForecast forecast;
  for (const Duration waited : waits) forecast.note(waited);
  return forecast;
}

bool foresees(const ArrivalForecast& forecast, Duration waited) {
  return forecast.expected().contains(waited);
}

TEST(ArrivalForecast, ForeseesWhatTheLastThreeWaitsAgreeOn) {
  EXPECT_FALSE(foresees(after({}), milliseconds(0)));
  EXPECT_FALSE(foresees(after({milliseconds(5), milliseconds(5)}), milliseconds(5)));
  ArrivalForecast forecast =
      after({milliseconds(70), microseconds(5000), microseconds(5100), microseconds(5300)});
  for (const int us : {4800, 5000, 5300, 5700}) EXPECT_TRUE(foresees(forecast, microseconds(us)));
  for (const int us : {0, 1000, 4000, 6000}) EXPECT_FALSE(foresees(forecast, microseconds(us)));
  forecast.note(milliseconds(9));
  EXPECT_FALSE(foresees(forecast, milliseconds(5))) << "one wait was another";
  for (int i = 0; i < 2; ++i) forecast.note(milliseconds(9));
  EXPECT_TRUE(foresees(forecast, milliseconds(9)));
  EXPECT_FALSE(foresees(forecast, milliseconds(5)));
}

TEST(ArrivalForecast, ForeseesNoWork) {
  EXPECT_TRUE(foresees(after({milliseconds(150), milliseconds(150), milliseconds(150)}),
                       milliseconds(150)));
  EXPECT_FALSE(foresees(after({milliseconds(300), milliseconds(300), milliseconds(300)}),
                        milliseconds(300)));
}

TEST(IdleWait, YieldsForAMillisecondAndThenSleeps) {
  IdleWait wait;
  const TimePoint begin = Clock::now();
  EXPECT_TRUE(wait.should_yield(begin));
  EXPECT_TRUE(wait.should_yield(begin + microseconds(999)));
  EXPECT_FALSE(wait.should_yield(begin + milliseconds(1)));
  EXPECT_EQ(wait.wake_time(begin + milliseconds(1)), TimePoint::max());
}

TEST(IdleWait, IsAwakeWhenItsEndIsExpected) {
  const ArrivalForecast::Window window{.begin = milliseconds(5), .end = milliseconds(6)};
  IdleWait wait(window);
  const TimePoint begin = Clock::now();
  EXPECT_TRUE(wait.should_yield(begin));
  EXPECT_FALSE(wait.should_yield(begin + milliseconds(2)));
  EXPECT_EQ(wait.wake_time(begin + milliseconds(2)), begin + milliseconds(5));
  EXPECT_TRUE(wait.should_yield(begin + milliseconds(5)));
  EXPECT_FALSE(wait.should_yield(begin + milliseconds(6))) << "it has not come";
  EXPECT_EQ(wait.wake_time(begin + milliseconds(6)), TimePoint::max());
}

TEST(IdleWait, OnlyLongWaitsAreRemembered) {
  ArrivalForecast forecast;
  for (int i = 0; i < 3; ++i) {
    IdleWait().end(forecast);
    IdleWait wait;
    wait.should_yield(Clock::now() - milliseconds(20));
    wait.end(forecast);
    IdleWait brief;
    brief.should_yield(Clock::now());
    brief.end(forecast);
  }
  EXPECT_TRUE(foresees(forecast, milliseconds(20)));
}

}  // namespace
}  // namespace stretto::group

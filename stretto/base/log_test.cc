// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/log.h"

#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/fake_environment.h"

namespace stretto {
struct TooLargeToPrint {};
}  // namespace stretto

template <>
struct fmt::formatter<stretto::TooLargeToPrint> : fmt::formatter<int> {
  auto format(const stretto::TooLargeToPrint&, fmt::format_context& context) const
      -> decltype(context.out()) {
    throw std::bad_alloc();
  }
};

namespace stretto {
namespace {

FakeEnvironment log_level(const std::string& level) {
  return FakeEnvironment({{"STRETTO_LOG", level}});
}

// Restores the default log settings, which belong to the whole process.
class LogTest : public ::testing::Test {
 protected:
  void TearDown() override { configure_log(log_level("warning"), "stretto"); }
};

TEST_F(LogTest, WarningsAndWorseAreShownByDefault) {
  EXPECT_FALSE(log_enabled(LogLevel::debug));
  EXPECT_FALSE(log_enabled(LogLevel::info));
  EXPECT_TRUE(log_enabled(LogLevel::warning));
  EXPECT_TRUE(log_enabled(LogLevel::error));
}

TEST_F(LogTest, TheEnvironmentChoosesTheLevel) {
  configure_log(log_level("debug"), "stretto");
  EXPECT_TRUE(log_enabled(LogLevel::debug));
  configure_log(log_level("error"), "stretto");
  EXPECT_FALSE(log_enabled(LogLevel::warning));
  EXPECT_TRUE(log_enabled(LogLevel::error));
  configure_log(log_level("off"), "stretto");
  EXPECT_FALSE(log_enabled(LogLevel::error));
}

TEST_F(LogTest, ALineNamesPrefixAndLevel) {
  configure_log(log_level("info"), "stretto [rank 3]");
  ::testing::internal::CaptureStderr();
  log(LogLevel::info, "{} peers over {}", 2, "shm");
  log(LogLevel::debug, "not shown");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "stretto [rank 3] info: 2 peers over shm\n");
}

TEST_F(LogTest, AProgramMayTakeTheLinesItself) {
  std::string lines;
  set_log_sink([&](LogLevel level, std::string_view line) {
    lines += fmt::format("<{}|{}>", static_cast<int>(level), line);
  });
  ::testing::internal::CaptureStderr();
  log(LogLevel::warning, "late: 100 % {}", "{}");
  log(LogLevel::error, "lost");
  set_log_sink({});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(lines, "<2|stretto warning: late: 100 % {}><3|stretto error: lost>");
  ::testing::internal::CaptureStderr();
  log(LogLevel::warning, "again");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "stretto warning: again\n");
}

TEST_F(LogTest, AnUnknownLevelIsSaidAndChangesNothing) {
  ::testing::internal::CaptureStderr();
  configure_log(log_level("loud"), "stretto");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "stretto warning: STRETTO_LOG=loud is not one of debug, info, warning, error, off\n");
  EXPECT_TRUE(log_enabled(LogLevel::warning));
  EXPECT_FALSE(log_enabled(LogLevel::info));
}

TEST_F(LogTest, ALineForWhichThereIsNoMemoryIsLeftOut) {
  ::testing::internal::CaptureStderr();
  log(LogLevel::error, "{}", TooLargeToPrint());
  log(LogLevel::error, "the next");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "stretto error: the next\n");
}

// A static object that logs in its destructor, as a communicator in a global variable may.
struct LastWords {
  ~LastWords() {
    if (speaks) log(LogLevel::error, "goodbye");
  }
  bool speaks = false;
} last_words;

TEST_F(LogTest, IsThereForWhatEndsBehindMain) {
  EXPECT_EXIT(
      {
        last_words.speaks = log_enabled(LogLevel::error);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "stretto error: goodbye\n");
}

}  // namespace
}  // namespace stretto

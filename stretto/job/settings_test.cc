// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/settings.h"

#include <algorithm>
#include <filesystem>
#include <regex>

#include <gtest/gtest.h>

#include "tests/support/expect_contains.h"
#include "tests/support/fake_environment.h"
#include "tests/support/files.h"

namespace stretto::job {
namespace {

// These are the variables that ranks and launchers read or set. Tests read others, too.
TEST(Variables, AreAllThatTheCodeNames) {
  const std::regex name("\"(STRETTO_[A-Z_]+)");
  std::size_t names = 0;
  for (const char* folder : {"/stretto", "/tools/launch"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(STRETTO_SOURCE_DIR + std::string(folder))) {
      const std::string file = entry.path().string();
      if (entry.is_directory() || file.find("_test.") != std::string::npos) continue;
      const std::string text = read_file(file);
      for (std::sregex_iterator hit(text.begin(), text.end(), name), end; hit != end; ++hit) {
        EXPECT_EQ(std::ranges::count(variables(), (*hit)[1].str()), 1)
            << (*hit)[1] << " in " << file;
        ++names;
      }
    }
  }
  EXPECT_GT(names, variables().size());
}

TEST(Settings, SayWhereEachTimeComesFrom) {
  Sources sources;
  JoinOptions options;
  options.timeout = std::chrono::seconds(90);
  options.warn_after = std::chrono::seconds(5);
  const Settings settings =
      read_settings(options, FakeEnvironment({{"STRETTO_WARN_AFTER", "7"}, {"HOME", "/"}}), sources)
          .or_throw();
  EXPECT_EQ(settings.warn_after, std::chrono::seconds(5));
  expect_contains(sources.text(), "timeout in seconds 90 from option timeout\n");
  expect_contains(sources.text(), "warnings after seconds 5 from option warn_after\n");
  expect_contains(sources.text(), "by default: join_timeout in seconds 300, ");
}

}  // namespace
}  // namespace stretto::job

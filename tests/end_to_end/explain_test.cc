// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// `stretto bench --explain` from outside, and the cache of links that it tells of.

#include <unistd.h>

#include <filesystem>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/end_to_end/tool.h"

namespace stretto {
namespace {

using namespace testing;  // NOLINT: what tool.h gives to tests.

TEST(Explain, MeasuresTheLinksOnceAndThenRemembersThem) {
  const std::string folder =
      std::filesystem::temp_directory_path() / ("stretto-explain-" + std::to_string(::getpid()));
  const Variables tcp = {{"STRETTO_TRANSPORT", "tcp"}, {"STRETTO_LINK_CACHE", folder}};
  const Arguments explain = {"bench", "--explain", "-n", "3", "--collective", "all_reduce"};
  for (const bool first : {true, false}) {
    const Ended ended = run(explain, tcp);
    EXPECT_EQ(ended.status, 0) << ended.errors;
    const std::string& text = ended.output;
    EXPECT_NE(text.find("inside a host"), std::string::npos) << text;
    EXPECT_EQ(text.find("measured just now") != std::string::npos, first) << text;
    EXPECT_NE(text.find("predicted at"), std::string::npos) << text;
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  }
  std::filesystem::remove_all(folder);
}

TEST(Explain, TellsProgramsAnObjectALine) {
  const Ended ended = run({"bench", "--explain", "-n", "2", "--json"});
  EXPECT_EQ(ended.status, 0) << ended.errors;
  std::istringstream stream(ended.output);
  int lines = 0;
  for (std::string line; std::getline(stream, line); ++lines) {
    const auto object = nlohmann::json::parse(line);
    EXPECT_EQ(object.at("ranks"), 2);
    EXPECT_FALSE(object.at("algorithm").get<std::string>().empty());
  }
  EXPECT_GE(lines, 9);
}

}  // namespace
}  // namespace stretto

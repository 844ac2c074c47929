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
    EXPECT_FALSE(object.at("algorithm_huge_pages").get<std::string>().empty());
  }
  EXPECT_GE(lines, 9);
}

// Which way private buffers go, as it is asked for.
TEST(Explain, TellsWhatIsCopiedOnce) {
  const Arguments explain = {"bench",        "--explain", "-n",      "2",
                             "--collective", "broadcast", "--bytes", "4M"};
  const auto output_with = [&](const std::string& wanted) {
    return run(explain, {{"STRETTO_SINGLE_COPY", wanted}}).output;
  };
  const std::string off = output_with("off");
  EXPECT_NE(off.find("staged_mapped; direct_mapped if registered\n"), std::string::npos) << off;
  EXPECT_EQ(off.find("copied once"), std::string::npos) << off;
  const std::string always = output_with("always");
  if (always.find("copied once") == std::string::npos) {
    GTEST_SKIP() << "the system does not let processes reach each other's memory";
  }
  const std::string automatic = output_with("automatic");
  EXPECT_NE(automatic.find("in huge pages, are copied once by the kernel"), std::string::npos);
  EXPECT_NE(automatic.find("direct_mapped if registered or in huge pages\n"), std::string::npos);
}

}  // namespace
}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"

// The programs of examples/ do what they say, with several numbers of processes.
namespace stretto::testing {
namespace {

class Examples : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!STRETTO_TORCH_ENABLED) GTEST_SKIP() << "built without libtorch";
  }
  // What an example prints on all ranks.
  std::string run(const std::string& example, int processes, const Arguments& arguments = {}) {
    const Arguments job = {"run", "-n", std::to_string(processes), "--",
                           STRETTO_BIN_DIR "/" + example};
    Tool tool(job + arguments, {{"OMP_NUM_THREADS", "1"}}, {"env", "-C", STRETTO_SOURCE_DIR});
    const Ended ended = end_of(tool);
    EXPECT_EQ(ended.status, 0) << example << ": " << ended.output << ended.errors;
    return ended.output + ended.errors;
  }
  // The numbers after `word` in `text`.
  static std::vector<double> numbers(const std::string& text, const std::string& word) {
    std::vector<double> result;
    const std::regex pattern(word + " ([0-9.]+)");
    for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) {
      result.push_back(std::stod((*at)[1]));
    }
    return result;
  }

  const TemporaryFolder folder_;
};

TEST_F(Examples, RanksWithDifferentNumbersOfBatchesEndWithTheSameModel) {
  const std::string text = run("04_uneven_inputs", 3);
  std::set<std::string> hashes;
  const std::regex pattern("rank ([0-9]): ([0-9]+) steps, parameters ([0-9a-f]+)");
  int ranks = 0;
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at, ++ranks) {
    EXPECT_EQ(std::stoi((*at)[2]), 20 + 5 * std::stoi((*at)[1]));
    hashes.insert((*at)[3]);
  }
  EXPECT_EQ(ranks, 3) << text;
  EXPECT_EQ(hashes.size(), 1u) << text;
}

TEST_F(Examples, SparseEmbeddingsLearnAndMoveFewRows) {
  const std::string text = run("05_sparse_embeddings", 2);
  ASSERT_EQ(numbers(text, "loss").size(), 2u) << text;
  EXPECT_LT(numbers(text, "then").front(), 0.5 * numbers(text, "loss").front()) << text;
  EXPECT_LE(numbers(text, "moved").front(), 200) << text;
}

TEST_F(Examples, AccumulatedGradientsLearn) {
  const auto losses = numbers(run("06_gradient_accumulation", 2), "loss");
  ASSERT_EQ(losses.size(), 6u);
  EXPECT_LT(losses.back(), losses.front());
}

TEST_F(Examples, AGptFollowsTheSameCurveWithAnyNumberOfProcesses) {
  const auto one = numbers(run("07_small_gpt", 1, {"ARCHITECTURE.md", "40"}), "loss");
  ASSERT_EQ(one.size(), 4u);
  EXPECT_LT(one.back(), one.front() - 0.2);
  const auto several = numbers(run("07_small_gpt", 4, {"ARCHITECTURE.md", "40"}), "loss");
  ASSERT_EQ(several.size(), one.size());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(several[i], one[i], 2e-3);
}

TEST_F(Examples, ParametersHaveTheSameBitsOnAnyNumberOfProcesses) {
  const std::string alone = run("14_any_number_of_ranks", 1);
  EXPECT_GT(numbers(alone, "").front(), 80) << alone;
  EXPECT_EQ(run("14_any_number_of_ranks", 5), alone);
}

TEST_F(Examples, TrainingGoesOnAfterACheckpointAndWithUnfrozenParts) {
  const std::string text = run("08_resume_and_unfreeze", 2, {folder_.path()});
  EXPECT_EQ(numbers(text, "mean loss").size(), 1u) << text;
  expect_lacks(text, "another one");
  expect_contains(text, "1 trained to the end");
  expect_contains(text, "after generation 2 all steps are done");
  // Perfetto takes events that overlap on a track for nested calls.
  const auto timeline = nlohmann::json::parse(read_file(folder_ / "timeline.json"));
  std::map<std::pair<int, int>, double> free_at;  // By rank and track, in microseconds.
  for (const auto& event : timeline.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    double& free = free_at[{event.at("pid"), event.at("tid")}];
    EXPECT_GE(event.at("ts").get<double>(), free - 0.01) << event;
    free = event.at("ts").get<double>() + event.at("dur").get<double>();
  }
  EXPECT_GE(free_at.size(), 6u) << "forward, backward and buckets of two ranks";
  // The elastic job has left a file, so that the next one has nothing more to do.
  const auto weights = numbers(text, "all steps are done: weights");
  ASSERT_EQ(weights.size(), 1u) << text;
  const std::string again = run("08_resume_and_unfreeze", 2, {folder_.path()});
  expect_contains(again, "after generation 1 all steps are done");
  EXPECT_EQ(numbers(again, "all steps are done: weights"), std::vector<double>(2, weights[0]));
}

TEST_F(Examples, AProgramForOneProcessBecomesOneForMany) {
  const auto before = numbers(run("10_one_process", 1), "accuracy");
  ASSERT_EQ(before.size(), 3u);
  EXPECT_GT(before.back(), 0.7);
  for (const int processes : {1, 3}) {
    const auto accuracies = numbers(run("10_many_processes", processes), "accuracy");
    ASSERT_EQ(accuracies.size(), 3u) << "rank 0 alone speaks";
    EXPECT_GT(accuracies.back(), 0.7) << processes << " processes";
  }
}

TEST_F(Examples, EveryWayToStepLearnsAndEndsWithOneModel) {
  const std::string after = run("09_optimizers", 2, {"after"});
  for (const std::string way : {"in-backward", "sharded", "local", "partial"}) {
    const std::string text = run("09_optimizers", 2, {way});
    const auto losses = numbers(text, "loss");
    const auto sums = numbers(text, "sum");
    ASSERT_EQ(sums.size(), 2u) << text;
    EXPECT_EQ(sums[0], sums[1]) << way;
    EXPECT_LT(losses[0], 0.1) << way;
    // These two change only when, and where, a parameter is stepped.
    if (way == "in-backward" || way == "sharded") {
      EXPECT_EQ(sums, numbers(after, "sum")) << way;
    }
  }
}

}  // namespace
}  // namespace stretto::testing

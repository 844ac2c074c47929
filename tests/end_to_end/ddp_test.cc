// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/end_to_end/tool.h"

// DistributedDataParallel in real processes: the trainer of ./dev demo, started by `stretto run`.
namespace stretto::testing {
namespace {

struct Step {
  double loss = 0;
  std::string parameter_hash;
  bool ranks_agree = false;
};

class DdpEndToEnd : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!STRETTO_TORCH_ENABLED) GTEST_SKIP() << "built without libtorch";
  }

  // Eight steps of training.
  std::vector<Step> train(int processes, const Variables& variables = {}) {
    const std::string record = folder_ / "record.jsonl";
    const Arguments launcher = {STRETTO_TOOL, "run", "-n", std::to_string(processes), "--"};
    const Arguments trainer = {STRETTO_BIN_DIR "/train_digits", "--model", "mlp"};
    const Arguments data = {"--data", STRETTO_SOURCE_DIR "/data/digits.csv", "--output", record};
    Process job((processes > 1 ? launcher + trainer : trainer) + data +
                    Arguments{"--test-images", "1285", "--epochs", "2"},
                variables);
    const Ended ended = end_of(job);
    EXPECT_EQ(ended.status, 0) << ended.output << ended.errors;
    return read(record);
  }

 private:
  static std::vector<Step> read(const std::string& path) {
    std::vector<Step> steps;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      const auto entry = nlohmann::json::parse(line);
      if (!entry.contains("step")) continue;
      steps.push_back({entry["loss"], entry["parameter_hash"], entry["ranks_agree"]});
    }
    EXPECT_EQ(steps.size(), 8u);
    return steps;
  }

  const TemporaryFolder folder_;
};

void expect_same_curve(const std::vector<Step>& several, const std::vector<Step>& one) {
  ASSERT_EQ(several.size(), one.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(several[i].ranks_agree) << "step " << i;
    EXPECT_NEAR(several[i].loss, one[i].loss, 1e-5) << "step " << i;
  }
}

std::vector<std::string> hashes(const std::vector<Step>& steps) {
  std::vector<std::string> result;
  for (const Step& step : steps) result.push_back(step.parameter_hash);
  return result;
}

TEST_F(DdpEndToEnd, SeveralProcessesFollowTheCurveOfOneAndAgreeOnEveryBit) {
  const auto one = train(1);
  ASSERT_FALSE(one.empty());
  EXPECT_LT(one.back().loss, one.front().loss - 0.1);
  const auto two = train(2);
  expect_same_curve(two, one);
  expect_same_curve(train(4), one);
  EXPECT_EQ(hashes(train(2)), hashes(two));
  EXPECT_EQ(hashes(train(2, {{"STRETTO_TRANSPORT", "tcp"}})), hashes(two)) << "by tcp";
}

}  // namespace
}  // namespace stretto::testing

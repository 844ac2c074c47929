// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/files.h"

// DistributedDataParallel in real processes: the trainer of ./dev demo, started by `stretto run`.
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

  // Eight steps of training; `environment` is put before the command: "NAME=value".
  std::vector<Step> train(int processes, const std::string& environment = "",
                          const std::string& model = "mlp") {
    const std::string record = folder_ / "record.jsonl";
    const std::string log = folder_ / "log.txt";
    std::string command = fmt::format(
        "{}/train_digits --data {}/data/digits.csv --model {} --test-images 1285 --epochs 2 "
        "--output {}",
        STRETTO_BIN_DIR, STRETTO_SOURCE_DIR, model, record);
    if (processes > 1) {
      command = fmt::format("{} run -n {} -- {}", STRETTO_TOOL, processes, command);
    }
    const int status =
        std::system(fmt::format("{} {} > {} 2>&1", environment, command, log).c_str());
    EXPECT_EQ(status, 0) << command << "\n" << stretto::read_file(log);
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

  const stretto::TemporaryFolder folder_;
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
  expect_same_curve(train(2), one);
  expect_same_curve(train(4), one);
}

TEST_F(DdpEndToEnd, AResNetLearnsWithAnyNumberOfProcessesAndTheyAgreeOnEveryBit) {
  for (const int processes : {1, 2, 4}) {
    const auto steps = train(processes, "", "resnet");
    ASSERT_FALSE(steps.empty());
    EXPECT_LT(steps.back().loss, steps.front().loss - 0.1) << processes << " processes";
    for (const Step& step : steps) EXPECT_TRUE(step.ranks_agree);
  }
}

TEST_F(DdpEndToEnd, SharedMemoryAndTcpGiveTheSameBitsAndTwiceTheSame) {
  const auto shared_memory = hashes(train(2));
  EXPECT_EQ(hashes(train(2)), shared_memory);
  EXPECT_EQ(hashes(train(2, "STRETTO_TRANSPORT=tcp")), shared_memory);
}

}  // namespace

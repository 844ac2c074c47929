// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/bucket_plan.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::reducer {
namespace {

// One case of bucket_plan.txt, see make_bucket_plan.py.
struct Case {
  std::vector<GradientSize> gradients;
  std::vector<std::size_t> limits;
  std::vector<std::size_t> order;
  BucketPlan expected;
};

template <class T>
std::vector<T> numbers(std::istringstream& line) {
  std::vector<T> result;
  for (T value; line >> value;) result.push_back(value);
  return result;
}

GradientSize read_tensor(std::istringstream& line) {
  std::string dtype_name;
  std::size_t count = 0;
  bool sparse = false;
  line >> dtype_name >> count >> sparse;
  for (const DType dtype : {DType::f16, DType::f32, DType::f64}) {
    if (name(dtype) == dtype_name) return {dtype, count * size_bytes(dtype), sparse};
  }
  ADD_FAILURE() << "unknown dtype " << dtype_name;
  return {};
}

void read_line(const std::string& text, Case& current) {
  std::istringstream line(text);
  std::string word;
  line >> word;
  if (word == "tensor") current.gradients.push_back(read_tensor(line));
  if (word == "limits") current.limits = numbers<std::size_t>(line);
  if (word == "order") current.order = numbers<std::size_t>(line);
  if (word == "bucket") {
    PlannedBucket bucket;
    line >> bucket.limit_bytes;
    bucket.gradients = numbers<std::size_t>(line);
    current.expected.push_back(bucket);
  }
}

TEST(BucketPlanGolden, EqualsPyTorchs) {
  std::ifstream file(STRETTO_SOURCE_DIR "/tests/golden/bucket_plan.txt");
  ASSERT_TRUE(file) << "bucket_plan.txt is missing";
  Case current;
  int cases = 0;
  for (std::string text; std::getline(file, text);) {
    if (text == "case") current = {};
    read_line(text, current);
    if (text != "end") continue;
    EXPECT_EQ(plan_buckets(current.gradients, current.limits, current.order), current.expected)
        << "case " << cases;
    ++cases;
  }
  EXPECT_EQ(cases, 61);
}

}  // namespace
}  // namespace stretto::reducer

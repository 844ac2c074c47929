// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/bucket_plan.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stretto::reducer {
namespace {

// One case of bucket_plan.txt, see make_bucket_plan.py.
struct Case {
  std::vector<GradientDescription> gradients;
  std::vector<bool> sparse;
  std::vector<std::size_t> limits;
  std::vector<std::size_t> order;
};

template <class T>
std::vector<T> numbers(std::istringstream& line) {
  std::vector<T> result;
  for (T value; line >> value;) result.push_back(value);
  return result;
}

// A case of these tensors, and of nothing else yet.
Case case_of_tensors(std::istringstream& line) {
  Case result;
  std::string dtype_name;
  std::size_t count = 0;
  for (bool sparse = false; line >> dtype_name >> count >> sparse;) {
    const auto dtypes = {DType::f16, DType::f32, DType::f64};
    const auto* const dtype =
        std::ranges::find(dtypes, dtype_name, [](DType each) { return name(each); });
    if (dtype == dtypes.end()) {
      ADD_FAILURE() << "unknown dtype " << dtype_name;
    } else {
      result.gradients.push_back({"", *dtype, count});
      result.sparse.push_back(sparse);
    }
  }
  return result;
}

BucketPlan buckets(std::istringstream& line) {
  BucketPlan plan;
  for (std::string text; std::getline(line, text, '|');) {
    std::istringstream bucket(text);
    plan.emplace_back();
    bucket >> plan.back().limit_bytes;
    plan.back().gradients = numbers<std::size_t>(bucket);
  }
  return plan;
}

TEST(BucketPlanGolden, EqualsPyTorchs) {
  std::ifstream file(STRETTO_SOURCE_DIR "/tests/golden/bucket_plan.txt");
  ASSERT_TRUE(file) << "bucket_plan.txt is missing";
  Case current;
  int cases = 0;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string word;
    line >> word;
    if (word == "tensors") current = case_of_tensors(line);
    if (word == "limits") current.limits = numbers<std::size_t>(line);
    if (word == "order") current.order = numbers<std::size_t>(line);
    if (word != "buckets") continue;
    EXPECT_EQ(plan_buckets(current.gradients, current.limits, current.order, current.sparse),
              buckets(line))
        << "case " << cases;
    ++cases;
  }
  EXPECT_EQ(cases, 16);
}

}  // namespace
}  // namespace stretto::reducer

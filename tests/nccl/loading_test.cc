// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Tests the installed NCCL, as far as that works without a device.

#include <gtest/gtest.h>
#include <unistd.h>

#include "stretto/bootstrap/host_port.h"
#include "stretto/bootstrap/store_server.h"
#include "stretto/cuda_driver/driver.h"
#include "stretto/job/elastic_job.h"
#include "stretto/job/join.h"
#include "stretto/nccl/load.h"
#include "tests/support/double_ranks.h"
#include "tests/support/failures.h"
#include "tests/support/on_threads.h"

namespace stretto::nccl {
namespace {

using stretto::expect_contains;

TEST(NcclLoading, RealNcclHasAllThatIsUsedAndKnowsItsVersion) {
  const auto loaded = load_nccl(nccl_files(process_environment()));
  if (!loaded.ok()) GTEST_SKIP() << "skipped: no NCCL (" << loaded.status().message() << ")";
  const Nccl& nccl = *loaded.value();
  EXPECT_GE(nccl.version, kOldestVersion);
  EXPECT_STREQ(nccl.call.get_error_string(kSuccess), "no error");
  // An empty group needs no device.
  EXPECT_EQ(nccl.call.group_start(), kSuccess);
  EXPECT_EQ(nccl.call.group_end(), kSuccess);
}

TEST(NcclLoading, SaysWhereItCouldBe) {
  const auto missing = load_nccl({"/nowhere/libnccl.so.2"});
  ASSERT_FALSE(missing.ok());
  expect_contains(missing.status().message(), "/nowhere/libnccl.so.2");
  expect_contains(missing.status().message(), "nvidia-nccl-cu13");
  expect_contains(missing.status().message(), "STRETTO_NCCL_LIBRARY");
  const auto other = load_nccl({"libm.so.6"});
  expect_contains(other.status().message(), "libm.so.6 has no function ncclGetVersion");
  const auto driver = Driver::open("/nowhere/libcuda.so.1", 0);
  expect_contains(driver.status().message(), "there is no driver of a GPU here");
}

TEST(NcclLoading, DeviceThatIsNotThereIsNamed) {
  const auto driver = Driver::open(stretto::testing::Double::file(), 8);
  expect_contains(driver.status().message(), "device 8 is not one of the 8");
}

// Programs choose the backend by an option of the job.
TEST(NcclLoading, JobsNameItAsTheirBackend) {
  using stretto::testing::Double;
  using stretto::testing::nccl_variables;
  Double::get().reset();
  const FakeEnvironment environment = nccl_variables();
  const std::string path = ::testing::TempDir() + "nccl_job_" + std::to_string(::getpid());
  on_threads(2, [&](int r) {
    const auto ranks = join({.rank = r,
                             .size = 2,
                             .rendezvous = "file://" + path,
                             .transport = "tcp",
                             .backend = "nccl",
                             .environment = &environment});
    const View data(Double::get().allocate(8, ranks->device().value()), 2, DType::f32);
    ranks->all_reduce(data).wait();
  });
  EXPECT_EQ(Double::get().control().launches, 2);
  EXPECT_EQ(Double::get().control().misuse, "");
  const FakeEnvironment no_device =
      nccl_variables({{"STRETTO_CUDA_DRIVER", "/nowhere/libcuda.so.1"}});
  expect_contains(
      stretto::testing::error_of([&] {
        (void)join({.rank = 0, .size = 1, .backend = "nccl", .environment = &no_device});
      }),
      "rank 0 of 1 could not join: the backend \"nccl\" needs a GPU, and there is no driver");
}

TEST(NcclLoading, TheDeviceIsThatOfTheOptionOrElseOfTheVariable) {
  stretto::testing::Double::get().reset();
  const FakeEnvironment environment = stretto::testing::nccl_variables({{"STRETTO_DEVICE", "5"}});
  for (const char* backend : {"nccl", "cuda"}) {
    JoinOptions options{.rank = 0, .size = 1, .backend = backend, .environment = &environment};
    EXPECT_EQ(join(options)->device(), 5);
    options.device = 3;
    EXPECT_EQ(join(options)->device(), 3);
  }
}

// The second process is restarted, and becomes the last rank, behind those that have met before.
TEST(NcclLoading, ProcessesOfAnElasticJobHaveTheSameDeviceInAllGenerations) {
  stretto::testing::Double::get().reset();
  const bootstrap::JobKey key = bootstrap::JobKey::generate().or_throw();
  const auto server = bootstrap::StoreServer::start({.key = key}).or_throw();
  on_threads(3, [&](int rank) {
    const FakeEnvironment environment = stretto::testing::nccl_variables(
        {{"STRETTO_RANK", std::to_string(rank)},
         {"STRETTO_SIZE", "3"},
         {"STRETTO_LOCAL_RANK", std::to_string(rank)},
         {"STRETTO_RENDEZVOUS", bootstrap::format_host_port("127.0.0.1", server->port())},
         {"STRETTO_JOB_KEY", key.hexadecimal()},
         {"STRETTO_TRANSPORT", "tcp"},
         {"STRETTO_BACKEND", "nccl"}});
    const ElasticOptions options{
        .join = {.join_timeout = std::chrono::seconds(20), .environment = &environment},
        .min_size = 3};
    auto job = std::make_unique<ElasticJob>(options);
    {
      const auto first = job->join();
      EXPECT_EQ(first->device(), rank);
      first->barrier().wait();
    }
    if (rank == 1) {
      job.reset();
      job = std::make_unique<ElasticJob>(options);
    }
    const auto again = job->join();
    EXPECT_EQ(again->device(), rank);
    again->barrier().wait();
    job->finish();
  });
  EXPECT_EQ(stretto::testing::Double::get().control().misuse, "");
}

}  // namespace
}  // namespace stretto::nccl

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/communicator/link_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <limits>

#include <gtest/gtest.h>

#include "tests/support/files.h"

namespace stretto::communicator {
namespace {

class LinkCache : public ::testing::Test {
 protected:
  CachedLink fresh(bool takes_lines = false) const {
    return {.cost = {.latency_seconds = 2e-6,
                     .message_seconds = 3e-7,
                     .seconds_per_byte = 1.5e-10,
                     .further_message_seconds = 5e-7,
                     .burst_bytes = 125000,
                     .burst_seconds_per_byte = 1e-9,
                     .reduce_seconds_per_byte = 2e-11},
            .memory = {.reduced = 16384, .moved = 2048, .takes_lines = takes_lines}};
  }

  const TemporaryFolder outside_;
  const std::string folder_ = outside_ / "cache";
  const std::string path_ = link_cache_path(folder_, "inside a host from node04: tcp");
};

TEST_F(LinkCache, GivesBackWhatWasSaved) {
  EXPECT_FALSE(load_link(path_));
  save_link(path_, "inside a host from node04: tcp", fresh());
  const auto link = load_link(path_);
  ASSERT_TRUE(link);
  EXPECT_DOUBLE_EQ(link->cost.latency_seconds, 2e-6);
  EXPECT_DOUBLE_EQ(link->cost.message_seconds, 3e-7);
  EXPECT_DOUBLE_EQ(link->cost.further_message_seconds, 5e-7);
  EXPECT_DOUBLE_EQ(link->cost.seconds_per_byte, 1.5e-10);
  EXPECT_DOUBLE_EQ(link->cost.burst_bytes, 125000);
  EXPECT_DOUBLE_EQ(link->cost.burst_seconds_per_byte, 1e-9);
  EXPECT_DOUBLE_EQ(link->cost.reduce_seconds_per_byte, 2e-11);
  EXPECT_EQ(link->memory.reduced, 16384);
  EXPECT_EQ(link->memory.moved, 2048);
  EXPECT_FALSE(link->memory.takes_lines);
  save_link(path_, "inside a host from node04: tcp", fresh(true));
  EXPECT_TRUE(load_link(path_)->memory.takes_lines);
  // Nothing else is left in the folder.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(LinkCache, ForgetsWhatIsOldOrFromTheFuture) {
  CachedLink link = fresh();
  constexpr std::int64_t kDay = std::int64_t{24} * 3600;
  link.age_seconds = 8 * kDay;
  save_link(path_, "a link", link);
  EXPECT_FALSE(load_link(path_));
  link.age_seconds = -kDay;
  save_link(path_, "a link", link);
  EXPECT_FALSE(load_link(path_));
}

TEST_F(LinkCache, TakesNothingThatItHasNotWritten) {
  save_link(path_, "a link", fresh());
  const std::string good = read_file(path_);
  for (std::size_t length = 0; length + 2 < good.size(); length += 7) {
    write_file(path_, good.substr(0, length));
    EXPECT_FALSE(load_link(path_) && length < good.rfind('\n', good.size() - 2)) << length;
  }
  for (const char* value : {"nan", "-1", "0", "1e9", "inf", "x"}) {
    std::string bad = good;
    const auto at = bad.find("latency_seconds ") + 16;
    bad.replace(at, bad.find('\n', at) - at, value);
    write_file(path_, bad);
    EXPECT_FALSE(load_link(path_)) << value;
  }
}

// In nanoseconds, modulo 2^64, the first of these times was a minute ago. The others are the
// earliest and the latest time.
TEST_F(LinkCache, ForgetsATimeThatTheClockCannotCount) {
  save_link(path_, "a link", fresh());
  const std::string good = read_file(path_);
  const std::int64_t now = std::chrono::duration_cast<std::chrono::seconds>(
                               std::chrono::system_clock::now().time_since_epoch())
                               .count();
  for (const std::int64_t seconds :
       {now - 60 + 18'446'744'074, std::numeric_limits<std::int64_t>::min(),
        std::numeric_limits<std::int64_t>::max()}) {
    std::string bad = good;
    const auto at = bad.find("measured_at ") + 12;
    bad.replace(at, bad.find('\n', at) - at, std::to_string(seconds));
    write_file(path_, bad);
    EXPECT_FALSE(load_link(path_)) << seconds;
  }
}

TEST_F(LinkCache, NeitherWaitsForNorWritesToWhatSomebodyHasPutThere) {
  std::filesystem::create_directories(folder_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_FALSE(load_link(path_)) << "an open of a FIFO would never return";
  const std::string beside = path_ + "." + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(beside.c_str(), 0600), 0);
  save_link(path_, "a link", fresh());
  EXPECT_TRUE(load_link(path_)) << "a FIFO is replaced";
  const std::string elsewhere = folder_ + "/somebody's";
  write_file(elsewhere, "precious");
  ASSERT_EQ(::symlink(elsewhere.c_str(), beside.c_str()), 0);
  save_link(path_, "a link", fresh());
  EXPECT_EQ(read_file(elsewhere), "precious");
}

TEST_F(LinkCache, AFolderThatCannotBeMadeIsNoFailure) {
  write_file(path_, "not a folder");
  save_link(path_ + "/link.txt", "a link", fresh());
  EXPECT_FALSE(load_link(path_ + "/link.txt"));
}

TEST_F(LinkCache, OtherLinksAreOtherFiles) {
  EXPECT_NE(path_, link_cache_path(folder_, "inside a host from node05: tcp"));
}

}  // namespace
}  // namespace stretto::communicator

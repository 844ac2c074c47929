// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A thousand groups, made and destroyed, leave no descriptor and no memory behind: between threads,
// and between processes by shared memory and by tcp.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include "stretto/job/join.h"
#include "stretto/job/threads.h"
#include "tests/allocation/counter.h"

namespace stretto::testing {
namespace {

constexpr int kGroups = 1000;
// What a thousand groups may leave, for queues that have grown: a few bytes each would be more.
constexpr long kBytesLeftMax = 16 * 1024;
// Files of the last regions, of which the other rank has not said yet that it has them.
constexpr long kDescriptorsLeftMax = 4;

long descriptors() {
  long count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

// Mappings of this process: a region that nobody unmaps would show here.
long mappings() {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/self/maps", "r"),
                                                       &std::fclose);
  long count = 0;
  for (int c = 0; (c = std::fgetc(file.get())) != EOF;) count += c == '\n';
  return count;
}

void make_groups(Communicator& comm, int count) {
  for (int i = 0; i < count; ++i) {
    auto group = i % 2 == 0 ? comm.new_group({1, 0})
                            : comm.split({.color = i % 3 == 0 ? comm.rank().value() : 0, .key = i});
    std::vector<std::int32_t> data(100, 1);
    if (i % 10 == 0) group->all_reduce(data).wait();
    if (i % 10 == 5) group->all_reduce(data, {.factor = 1, .algorithm = "ring"}).wait();
  }
  comm.barrier().wait();
}

TEST(AThousandGroups, OfThreadsLeaveNothing) {
  for (const bool shared_memory : {false, true}) {
    auto ranks = make_thread_ranks({.size = 2, .shared_memory = shared_memory});
    const auto on_both = [&](int count) {
      std::thread other([&] { make_groups(*ranks[1], count); });
      make_groups(*ranks[0], count);
      other.join();
    };
    on_both(100);
    const long bytes = bytes_in_use();
    const long open = descriptors();
    on_both(kGroups);
    EXPECT_LE(bytes_in_use() - bytes, kBytesLeftMax) << "shared memory: " << shared_memory;
    EXPECT_EQ(descriptors(), open) << "shared memory: " << shared_memory;
  }
}

// In a process of its own. Returns whether all is well.
bool process_rank(int rank, const std::string& place, bool tcp) {
  auto comm = join({.rank = rank, .size = 2, .rendezvous = place, .disable_shared_memory = tcp});
  make_groups(*comm, 100);
  const long bytes = bytes_in_use();
  const long open = descriptors();
  const long mapped = mappings();
  make_groups(*comm, kGroups);
  const long bytes_left = bytes_in_use() - bytes;
  const long open_left = descriptors() - open;
  const long mapped_left = mappings() - mapped;
  comm->barrier().wait();
  if (bytes_left <= kBytesLeftMax && open_left <= kDescriptorsLeftMax && mapped_left <= 10)
    return true;
  std::fprintf(stderr, "rank %d, %s: %ld bytes, %ld descriptors, %ld mappings are left\n", rank,
               tcp ? "tcp" : "shared memory", bytes_left, open_left, mapped_left);
  return false;
}

TEST(AThousandGroups, OfProcessesLeaveNothing) {
  for (const bool tcp : {false, true}) {
    const std::string path = ::testing::TempDir() + "stretto_groups_" + std::to_string(::getpid()) +
                             (tcp ? "_tcp" : "_shm");
    std::vector<pid_t> children;
    for (int rank = 0; rank < 2; ++rank) {
      const pid_t child = ::fork();
      if (child == 0) {
        bool well = false;
        try {
          well = process_rank(rank, "file://" + path, tcp);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        }
        ::_exit(well ? 0 : 1);
      }
      children.push_back(child);
    }
    for (const pid_t child : children) {
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
  }
}

}  // namespace
}  // namespace stretto::testing

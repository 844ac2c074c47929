// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/store_queue.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <thread>

#include "stretto/bootstrap/memory_store.h"
#include "stretto/bootstrap/prefix_store.h"
#include "stretto/bootstrap/store_server.h"
#include "stretto/bootstrap/tcp_store.h"

namespace stretto::bootstrap {
namespace {

Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

TEST(StoreQueue, IsFirstInFirstOut) {
  const auto store = std::make_shared<MemoryStore>();
  StoreQueue queue(store, "work");
  StoreQueue other(std::make_shared<PrefixStore>("a/", store), "work");
  EXPECT_EQ(queue.length(soon()).value(), 0);
  for (const char* value : {"one", "", "three"}) ASSERT_TRUE(queue.push(value, soon()).ok());
  EXPECT_EQ(queue.length(soon()).value(), 3);
  EXPECT_EQ(other.length(soon()).value(), 0) << "another prefix is another queue";
  EXPECT_EQ(queue.pop(soon()).value(), "one");
  EXPECT_EQ(queue.pop(soon()).value(), "");
  ASSERT_TRUE(queue.push("four", soon()).ok());
  EXPECT_EQ(queue.pop(soon()).value(), "three");
  EXPECT_EQ(queue.pop(soon()).value(), "four");
  EXPECT_EQ(queue.length(soon()).value(), 0);
}

TEST(StoreQueue, PopWaitsUntilItsTimeIsUp) {
  StoreQueue queue(std::make_shared<MemoryStore>(), "work");
  const auto status = queue.pop(Deadline::after(std::chrono::milliseconds(20))).status();
  EXPECT_EQ(status.code(), StatusCode::timeout) << status.message();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(queue.push("for the place that was given up", soon()).ok());
    EXPECT_TRUE(queue.push("value", soon()).ok());
  });
  EXPECT_EQ(queue.pop(soon()).value(), "value");
  later.join();
}

TEST(StoreQueue, EveryValueIsTakenOnceByManyAtATcpStore) {
  const JobKey key = JobKey::generate().or_throw();
  const auto server = StoreServer::start({.key = key}).or_throw();
  constexpr int kThreads = 4;
  constexpr int kEach = 20;
  std::mutex mutex;
  std::multiset<std::string> taken;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      StoreQueue queue(
          connect_tcp_store({.host = "127.0.0.1", .port = server->port(), .key = key}, soon())
              .or_throw(),
          "work");
      for (int i = 0; i < kEach; ++i) {
        EXPECT_TRUE(queue.push(std::to_string(t * kEach + i), soon()).ok());
        const std::string value = queue.pop(soon()).or_throw();
        const std::lock_guard lock(mutex);
        taken.insert(value);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kThreads * kEach; ++i) EXPECT_EQ(taken.count(std::to_string(i)), 1) << i;
}

}  // namespace
}  // namespace stretto::bootstrap

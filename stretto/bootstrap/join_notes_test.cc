// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/rank_notes.h"

#include <gtest/gtest.h>

#include <thread>

#include "stretto/bootstrap/memory_store.h"
#include "stretto/bootstrap/store_server.h"
#include "stretto/bootstrap/tcp_store.h"

namespace stretto::bootstrap {
namespace {

using std::chrono::milliseconds;

Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

TEST(RankNotes, NamesWhoIsMissingAndWhereAndForHowLong) {
  const JobKey key = JobKey::generate().or_throw();
  const auto server = StoreServer::start({.key = key}).or_throw();
  const auto store =
      connect_tcp_store({.host = "localhost", .port = server->port(), .key = key}, soon())
          .or_throw();
  for (int r : {0, 1, 2, 3, 4, 7}) {
    ASSERT_TRUE(store->set("card/" + std::to_string(r), "", soon()).ok());
  }
  const RankNotes notes(*store, 8, Deadline::after(milliseconds(600)));
  EXPECT_TRUE(notes.get("card", 4).ok());
  const Status status = notes.get("card", 5).status();
  EXPECT_EQ(status.code(), StatusCode::timeout);
  EXPECT_EQ(status.message(),
            fmt::format("waited 1/1 s for 2 of 8 ranks: 5, 6 never came. All meet in the store of "
                        "the launcher at 127.0.0.1:{} (resolved from \"localhost\"), which their "
                        "hosts must be able to reach",
                        server->port()));
}

TEST(RankNotes, RemindsWhileItWaits) {
  MemoryStore store;
  RankNotes notes(store, 2, soon());
  notes.set_reminder(milliseconds(10));
  testing::internal::CaptureStderr();
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(35));
    EXPECT_TRUE(store.set("card/1", "here", soon()).ok());
  });
  EXPECT_EQ(notes.get("card", 1).or_throw(), "here");
  late.join();
  EXPECT_PRED_FORMAT2(testing::IsSubstring,
                      "warning: waiting 0/10 s for 2 of 2 ranks: 0, 1 never came. All meet in the "
                      "memory of this process",
                      testing::internal::GetCapturedStderr());
}

}  // namespace
}  // namespace stretto::bootstrap

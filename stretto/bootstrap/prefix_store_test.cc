// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/prefix_store.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stretto/bootstrap/memory_store.h"
#include "stretto/bootstrap/store_page.h"
#include "tests/support/expect_contains.h"
#include "tests/support/soon.h"

namespace stretto::bootstrap {
namespace {

// Through a connection, each request takes a round trip to the server.
TEST(PrefixStore, AsksForManyKeysAtOnce) {
  class Asked final : public MemoryStore {
   public:
    Result<std::vector<std::string>> multi_get(std::span<const std::string> keys,
                                               const WaitLimit& limit) override {
      ++times;
      return MemoryStore::multi_get(keys, limit);
    }
    int times = 0;
  };
  const auto whole = std::make_shared<Asked>();
  PrefixStore part("b/", std::make_shared<PrefixStore>("a/", whole));
  ASSERT_TRUE(whole->set("a/b/1", "one", soon()).ok());
  ASSERT_TRUE(whole->set("a/b/2", "two", soon()).ok());
  const std::array<std::string, 2> keys = {"2", "1"};
  EXPECT_EQ(part.multi_get(keys, soon()).or_throw(), (std::vector<std::string>{"two", "one"}));
  EXPECT_EQ(whole->times, 1);
}

TEST(PrefixStore, RefusesKeysThatAreNotInItsPart) {
  class Faulty final : public MemoryStore {
   public:
    Result<StoreReply> answer(const StoreRequest& /*request*/,
                              const WaitLimit& /*limit*/) override {
      StoreReply reply;
      add_to_page(reply.value, "x");
      return reply;
    }
  };
  const auto refuses = [](Store& store, std::string_view prefix) {
    expect_failure(store.list_keys(prefix, soon()).status(), StatusCode::protocol,
                   "keys that were not asked for");
  };
  const auto whole = std::make_shared<Faulty>();
  PrefixStore part("long/", whole);
  refuses(part, "");
  refuses(*whole, "long");
  // The faulty store gives the same page again and again.
  refuses(*whole, "");
}

TEST(PrefixStore, DoesNotListItsPrefix) {
  const auto whole = std::make_shared<MemoryStore>();
  PrefixStore part("a/", whole);
  ASSERT_TRUE(whole->set("a/", "", soon()).ok());
  ASSERT_TRUE(part.set("b", "", soon()).ok());
  EXPECT_EQ(part.list_keys("", soon()).or_throw(), std::vector<std::string>{"b"});
  EXPECT_EQ(part.num_keys("", soon()).or_throw(), 1);
}

}  // namespace
}  // namespace stretto::bootstrap

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// These tests run on every store, and show what each must do.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "stretto/bootstrap/file_store.h"
#include "stretto/bootstrap/memory_store.h"
#include "stretto/bootstrap/prefix_store.h"
#include "stretto/bootstrap/store_server.h"
#include "stretto/bootstrap/tcp_store.h"
#include "stretto/bootstrap/torch_store.h"
#include "tests/support/expect_contains.h"
#include "tests/support/files.h"
#include "tests/support/in_child.h"
#include "tests/support/on_threads.h"
#include "tests/support/soon.h"

namespace stretto::bootstrap {
namespace {

using std::chrono::milliseconds;
using Keys = std::vector<std::string>;

// A place where stores can be opened that all see the same keys.
class World {
 public:
  virtual ~World() = default;
  virtual std::shared_ptr<Store> open() = 0;
};

class MemoryWorld : public World {
 public:
  std::shared_ptr<Store> open() override { return store_; }

 private:
  std::shared_ptr<Store> store_ = std::make_shared<MemoryStore>();
};

class FileWorld : public World {
 public:
  std::shared_ptr<Store> open() override {
    return open_file_store(folder_ / "store", soon()).or_throw();
  }

 private:
  const TemporaryFolder folder_;
};

class TcpWorld : public World {
 public:
  std::shared_ptr<Store> open() override {
    return connect_tcp_store({.host = "127.0.0.1", .port = server_->port(), .key = key_}, soon())
        .or_throw();
  }

 private:
  JobKey key_ = JobKey::generate().or_throw();
  std::unique_ptr<StoreServer> server_ = StoreServer::start({.key = key_}).or_throw();
};

class PrefixWorld : public World {
 public:
  std::shared_ptr<Store> open() override { return std::make_shared<PrefixStore>("p", whole_); }

 private:
  std::shared_ptr<Store> whole_ = std::make_shared<MemoryStore>();
};

// Two objects that see the same keys.
struct Stores {
  std::shared_ptr<Store> one;
  std::shared_ptr<Store> other;
};

void expect_invalid(const Status& status, const std::string& sentence) {
  expect_failure(status, StatusCode::invalid_argument, sentence);
}

// The limit is kept to some tens of milliseconds. A loaded machine may delay any one wait, but not
// all three.
void expect_timeout_after(milliseconds limit, const std::function<Status(Deadline)>& wait) {
  Duration best = Duration::max();
  for (int attempt = 0; attempt < 3 && best > limit + milliseconds(40); ++attempt) {
    const TimePoint start = Clock::now();
    const Status status = wait(Deadline(start + limit));
    const Duration waited = Clock::now() - start;
    EXPECT_EQ(status.code(), StatusCode::timeout) << status.message();
    EXPECT_GE(waited, limit);
    best = std::min(best, waited);
  }
  EXPECT_LE(best, limit + milliseconds(40));
}

void gives_everybody_what_one_has_set(const Stores& stores) {
  std::string every_byte;
  for (int byte = 0; byte < 256; ++byte) every_byte += static_cast<char>(byte);
  ASSERT_TRUE(stores.one->set("rank/0", every_byte, soon()).ok());
  EXPECT_EQ(stores.other->get("rank/0", soon()).or_throw(), every_byte);
  ASSERT_TRUE(stores.other->set("rank/0", "", soon()).ok());
  EXPECT_EQ(stores.one->get("rank/0", soon()).or_throw(), "");
  const std::string key_of_any_bytes("\0\n\xff key", 7);
  ASSERT_TRUE(stores.one->set(key_of_any_bytes, "x", soon()).ok());
  EXPECT_EQ(stores.other->get(key_of_any_bytes, soon()).or_throw(), "x");
}

void keeps_its_limits(const Stores& stores) {
  // A prefix takes the other bytes.
  const std::string longest_key(kMaxKeyBytes - 3, 'k');
  const std::string longest(kMaxValueBytes, 'v');
  ASSERT_TRUE(stores.one->set(longest_key, longest, soon()).ok());
  EXPECT_EQ(stores.other->get(longest_key, soon()).or_throw(), longest);
  const std::string long_key(kMaxKeyBytes + 1, 'k');
  expect_invalid(stores.one->set(long_key, "", soon()),
                 "a key of the store has 1 to 256 bytes, not 257");
  expect_invalid(stores.one->get(long_key, soon()).status(), "a key of the store");
  expect_invalid(stores.one->set("", "", soon()), "not 0");
  expect_invalid(stores.one->set("key", longest + "v", soon()), "at most 65536 bytes, not 65537");
  expect_invalid(stores.one->compare_set("key", longest + "v", "", soon()).status(),
                 "at most 65536");
  EXPECT_FALSE(stores.one->check(Keys{"key"}, soon()).or_throw());
}

void waits_no_longer_than_its_deadline(const Stores& stores) {
  expect_timeout_after(milliseconds(60), [&](Deadline deadline) {
    return stores.one->get("nobody sets this", deadline).status();
  });
  expect_timeout_after(milliseconds(60), [&](Deadline deadline) {
    return stores.one->wait(Keys{"nobody sets this"}, deadline);
  });
  const Status status =
      stores.one->get("nobody sets this", Deadline::after(milliseconds(5))).status();
  expect_contains(status.message(),
                  "waiting for \"nobody sets this\" in " + stores.one->describe() + ": ");
  // A wait that was given up must not spoil later requests.
  EXPECT_TRUE(stores.one->set("nobody sets this", "but now", soon()).ok());
  EXPECT_EQ(stores.one->get("nobody sets this", soon()).or_throw(), "but now");
}

void a_wait_keeps_nobody_else_waiting(const Stores& stores) {
  std::thread waiter([&] {
    EXPECT_EQ(stores.one->get("late", soon()).or_throw(), "here");
    EXPECT_EQ(stores.one->get("later", Deadline()).or_throw(), "here, too");
    EXPECT_TRUE(stores.one->wait(Keys{"late", "latest"}, soon()).ok());
  });
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_TRUE(stores.one->set("late", "here", soon()).ok());
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_TRUE(stores.other->append("later", "here, too", soon()).ok());
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(stores.other->add("latest", 1, soon()).or_throw(), 1);
  waiter.join();
}

// A client asks for fewer keys at a time. They are set in the opposite order.
void gets_many_keys_that_come_later(const Stores& stores) {
  Keys keys;
  for (int i = 0; i < 150; ++i) keys.push_back(fmt::format("many/{}", i));
  std::thread waiter([&] { EXPECT_EQ(stores.one->multi_get(keys, soon()).or_throw(), keys); });
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
    EXPECT_TRUE(stores.other->set(*key, *key, soon()).ok());
  }
  waiter.join();
  keys[70] = "nobody sets this one";
  const Status status = stores.one->multi_get(keys, Deadline::after(milliseconds(500))).status();
  EXPECT_EQ(status.code(), StatusCode::timeout);
  expect_contains(status.message(), "nobody sets this one\" in ");
  // A wait that was given up must not spoil later requests.
  EXPECT_EQ(stores.one->multi_get(Keys{"many/2", "many/1"}, soon()).or_throw(),
            (Keys{"many/2", "many/1"}));
  EXPECT_TRUE(stores.one->multi_get(Keys{}, soon()).or_throw().empty());
  EXPECT_EQ(stores.one->multi_get(Keys{"many/1", ""}, soon()).status().code(),
            StatusCode::invalid_argument);
}

void adds(const Stores& stores) {
  EXPECT_EQ(stores.one->add("count", 5, soon()).or_throw(), 5);
  EXPECT_EQ(stores.other->add("count", -7, soon()).or_throw(), -2);
  EXPECT_EQ(stores.one->get("count", soon()).or_throw(), "-2");
  ASSERT_TRUE(stores.one->set("count", "40", soon()).ok());
  EXPECT_EQ(stores.other->add("count", 2, soon()).or_throw(), 42);
  EXPECT_EQ(stores.other->add("new", 0, soon()).or_throw(), 0);
  EXPECT_TRUE(stores.one->check(Keys{"new"}, soon()).or_throw());
}

void refuses_to_add_to_what_is_no_number(const Stores& stores) {
  for (const char* text : {"", "four", "4x", " 4", "99999999999999999999"}) {
    ASSERT_TRUE(stores.one->set("text", text, soon()).ok());
    expect_invalid(stores.one->add("text", 1, soon()).status(), "is not a number");
    EXPECT_EQ(stores.one->get("text", soon()).or_throw(), text);
  }
  ASSERT_TRUE(stores.one->set("most", "9223372036854775807", soon()).ok());
  expect_invalid(stores.one->add("most", 1, soon()).status(),
                 "9223372036854775807 + 1 is no number of 64 bits");
  EXPECT_EQ(stores.one->add("most", -7, soon()).or_throw(), 9223372036854775800);
}

void loses_no_addition(const Stores& stores) {
  constexpr int kThreads = 4;
  constexpr int kTimes = 25;
  on_threads(kThreads, [&](int thread) {
    Store& store = thread % 2 == 0 ? *stores.one : *stores.other;
    for (int i = 0; i < kTimes; ++i) EXPECT_TRUE(store.add("count", 1, soon()).ok());
  });
  EXPECT_EQ(stores.one->get("count", soon()).or_throw(), std::to_string(kThreads * kTimes));
}

void compares_and_sets(const Stores& stores) {
  EXPECT_EQ(stores.one->compare_set("leader", "1", "2", soon()).or_throw(), "");
  EXPECT_EQ(stores.one->compare_set("leader", "1", "1", soon()).or_throw(), "");
  EXPECT_FALSE(stores.other->check(Keys{"leader"}, soon()).or_throw());
  EXPECT_EQ(stores.one->compare_set("leader", "", "rank 3", soon()).or_throw(), "rank 3");
  EXPECT_EQ(stores.other->compare_set("leader", "", "rank 4", soon()).or_throw(), "rank 3");
  EXPECT_EQ(stores.other->compare_set("leader", "rank 3", "rank 4", soon()).or_throw(), "rank 4");
  EXPECT_EQ(stores.one->get("leader", soon()).or_throw(), "rank 4");
  EXPECT_EQ(stores.one->compare_set("leader", "rank 4", "rank 4", soon()).or_throw(), "rank 4");
}

void appends(const Stores& stores) {
  ASSERT_TRUE(stores.one->append("names", "a", soon()).ok());
  ASSERT_TRUE(stores.other->append("names", std::string("\0b", 2), soon()).ok());
  EXPECT_EQ(stores.one->get("names", soon()).or_throw(), std::string("a\0b", 3));
  ASSERT_TRUE(stores.one->set("full", std::string(kMaxValueBytes - 1, 'x'), soon()).ok());
  expect_invalid(stores.one->append("full", "yz", soon()), "this one would have 65537");
  ASSERT_TRUE(stores.one->append("full", "y", soon()).ok());
  EXPECT_EQ(stores.other->get("full", soon()).or_throw().back(), 'y');
}

void checks_and_deletes(const Stores& stores) {
  EXPECT_TRUE(stores.one->check(Keys{}, soon()).or_throw());
  EXPECT_FALSE(stores.one->check(Keys{"a"}, soon()).or_throw());
  ASSERT_TRUE(stores.one->set("a", "1", soon()).ok());
  ASSERT_TRUE(stores.one->set("b", "2", soon()).ok());
  EXPECT_TRUE(stores.other->check(Keys{"a", "b"}, soon()).or_throw());
  EXPECT_FALSE(stores.other->check(Keys{"a", "c"}, soon()).or_throw());
  EXPECT_TRUE(stores.other->delete_key("a", soon()).or_throw());
  EXPECT_FALSE(stores.one->delete_key("a", soon()).or_throw());
  EXPECT_FALSE(stores.one->check(Keys{"a"}, soon()).or_throw());
  EXPECT_EQ(stores.one->get("a", Deadline::after(milliseconds(5))).status().code(),
            StatusCode::timeout);
  EXPECT_EQ(stores.one->add("a", 1, soon()).or_throw(), 1) << "as if it had never been there";
}

void prefixes_keep_apart(const Stores& stores) {
  PrefixStore first("attempt/1/", stores.one);
  PrefixStore second("attempt/2/", stores.other);
  ASSERT_TRUE(first.set("card", "old", soon()).ok());
  EXPECT_FALSE(second.check(Keys{"card"}, soon()).or_throw())
      << "a restarted job must not see the notes of its first attempt";
  EXPECT_EQ(stores.one->get("attempt/1/card", soon()).or_throw(), "old");
  expect_invalid(first.set(std::string(kMaxKeyBytes, 'k'), "", soon()), "a key of the store");
}

struct Check {
  const char* name;
  void (*run)(const Stores&);
};

const Check kContract[] = {
    {"GivesEverybodyWhatOneHasSet", gives_everybody_what_one_has_set},
    {"KeepsItsLimits", keeps_its_limits},
    {"WaitsNoLongerThanItsDeadline", waits_no_longer_than_its_deadline},
    {"AWaitKeepsNobodyElseWaiting", a_wait_keeps_nobody_else_waiting},
    {"GetsManyKeysThatComeLater", gets_many_keys_that_come_later},
    {"Adds", adds},
    {"RefusesToAddToWhatIsNoNumber", refuses_to_add_to_what_is_no_number},
    {"LosesNoAddition", loses_no_addition},
    {"ComparesAndSets", compares_and_sets},
    {"Appends", appends},
    {"ChecksAndDeletes", checks_and_deletes},
    {"PrefixesKeepApart", prefixes_keep_apart},
};

template <class T>
std::unique_ptr<World> make() {
  return std::make_unique<T>();
}

struct Kind {
  const char* name;
  std::unique_ptr<World> (*make)();
};

// All stores but PyTorch's do this.
void keys_are_listed(const Stores& stores) {
  const auto& [one, other] = stores;
  EXPECT_TRUE(one->list_keys("", soon()).value().empty());
  EXPECT_EQ(one->num_keys("", soon()).value(), 0);
  const Keys keys = {"b/2", "a", "b/1", std::string("b/\0x", 4), "c"};
  ASSERT_TRUE(one->multi_set(keys, keys, soon()).ok());
  EXPECT_EQ(other->multi_get(keys, soon()).value(), keys);
  EXPECT_EQ(other->list_keys("b/", soon()).value(), (Keys{std::string("b/\0x", 4), "b/1", "b/2"}));
  EXPECT_EQ(other->num_keys("b/", soon()).value(), 3);
  EXPECT_EQ(other->num_keys("", soon()).value(), 5);
  EXPECT_EQ(other->list_keys("d", soon()).value(), Keys{});
  ASSERT_TRUE(one->delete_key("b/1", soon()).value());
  EXPECT_EQ(other->num_keys("b/", soon()).value(), 2);
  EXPECT_EQ(one->multi_set(keys, Keys{"1"}, soon()).code(), StatusCode::invalid_argument);
}

// These keys do not fit into one reply.
void many_keys_are_listed(const Stores& stores) {
  const auto& [one, other] = stores;
  Keys keys;
  for (int i = 0; i < 600; ++i) {
    keys.push_back(fmt::format("{:0>200}", i));
    ASSERT_TRUE(one->set(keys.back(), "", soon()).ok());
  }
  EXPECT_EQ(other->list_keys("0", soon()).value(), keys);
  EXPECT_EQ(other->num_keys("0", soon()).value(), 600);
}

constexpr Check kListing[] = {{"ListsKeys", keys_are_listed},
                              {"ListsManyKeys", many_keys_are_listed}};

class StoreContract : public ::testing::TestWithParam<std::tuple<Kind, Check>> {};

TEST_P(StoreContract, IsKept) {
  const auto& [kind, check] = GetParam();
  const std::unique_ptr<World> world = kind.make();
  check.run({world->open(), world->open()});
}

std::vector<Check> all_checks() {
  std::vector<Check> checks(std::begin(kContract), std::end(kContract));
  checks.insert(checks.end(), std::begin(kListing), std::end(kListing));
  return checks;
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreContract,
                         ::testing::Combine(::testing::Values(Kind{"Memory", make<MemoryWorld>},
                                                              Kind{"File", make<FileWorld>},
                                                              Kind{"Tcp", make<TcpWorld>},
                                                              Kind{"Prefix", make<PrefixWorld>}),
                                            ::testing::ValuesIn(all_checks())),
                         [](const auto& parameter) {
                           return std::string(std::get<0>(parameter.param).name) +
                                  std::get<1>(parameter.param).name;
                         });

// A TCPStore in a Python process, as torchrun's agent hosts one.
class TorchServer {
 public:
  explicit TorchServer(const std::string& python) {
    int ends[2];
    if (::pipe(ends) != 0) return;
    process_ = ::fork();
    if (process_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::execl(python.c_str(), python.c_str(), "-c", kProgram, nullptr);
      ::_exit(127);
    }
    ::close(ends[1]);
    FILE* lines = ::fdopen(ends[0], "r");
    if (std::fscanf(lines, "port %d", &port_) != 1) port_ = 0;
    (void)std::fclose(lines);
  }
  TorchServer(const TorchServer&) = delete;
  TorchServer& operator=(const TorchServer&) = delete;
  ~TorchServer() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  // 0 if it did not start.
  int port() const { return port_; }

 private:
  static constexpr const char* kProgram =
      "import time\n"
      "from torch.distributed import TCPStore\n"
      "store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
      "print('port', store.port, flush=True)\n"
      "time.sleep(120)\n";
  pid_t process_ = -1;
  int port_ = 0;
};

TEST(Store, LooksNothingUpWhereTheKeyIsDeletedMeanwhile) {
  class Deleting final : public MemoryStore {
   public:
    Result<StoreReply> answer(const StoreRequest& request, const WaitLimit& limit) override {
      Result<StoreReply> reply = MemoryStore::answer(request, limit);
      if (request.operation == StoreOperation::check) {
        (void)MemoryStore::answer({.operation = StoreOperation::delete_key, .key = request.key},
                                  limit);
      }
      return reply;
    }
  };
  Deleting store;
  ASSERT_TRUE(store.set("key", "value", soon()).ok());
  EXPECT_FALSE(store.look_up("key", soon()).or_throw());
}

// If they shared a connection, its server would go on waiting for the child's key.
TEST(TcpStore, OfAForkedChildHasConnectionsOfItsOwn) {
  TcpWorld world;
  const std::shared_ptr<Store> store = world.open();
  ASSERT_TRUE(store->set("there", "a value", soon()).ok());
  const int failed = testing::exit_code_in_child([&] {
    const Status late = store->get("not there", Deadline::after(milliseconds(50))).status();
    const bool is_set = store->set("of the child", "another", soon()).ok();
    return late.code() == StatusCode::timeout && is_set ? 0 : 1;
  });
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(store->get("there", soon()).or_throw(), "a value");
  EXPECT_EQ(store->get("of the child", soon()).or_throw(), "another");
}

TEST(TcpStore, OfAForkedChildWaitsForNoThreadOfItsParent) {
  TcpWorld world;
  const std::shared_ptr<Store> store = world.open();
  std::atomic<bool> has_ended = false;
  std::thread busy([&] {  // Allocates nothing: a sanitizer's allocator is not safe to fork.
    while (!has_ended) (void)store->server();
  });
  for (int i = 0; i < 20; ++i) {
    const int failed = testing::exit_code_in_child([&] {
      ::alarm(20);  // Ends a child that waits for ever.
      const bool is_there = store->get("not there", Deadline::after(milliseconds(20))).ok();
      const bool is_set = store->set("of the child", "a value", soon()).ok();
      return !is_there && is_set && !store->server().empty() ? 0 : 1;
    });
    EXPECT_EQ(failed, 0);
    if (failed != 0) break;
  }
  has_ended = true;
  busy.join();
}

// Returns STRETTO_TORCH_PYTHON, or the Python that ./dev has set up; "" if it has no torch.
std::string python_with_torch() {
  const char* const chosen = std::getenv("STRETTO_TORCH_PYTHON");
  std::string python = chosen != nullptr ? chosen : STRETTO_SOURCE_DIR "/build/venv/bin/python";
  const char* const look = "import importlib.util as u; exit(u.find_spec(\"torch\") is None)";
  const std::string command = fmt::format("'{}' -c '{}' 2> /dev/null", python, look);
  return std::system(command.c_str()) == 0 ? python : "";
}

// This is one test because importing torch takes seconds. Each part has keys of its own.
TEST(TorchStore, KeepsTheContractWithARealServer) {
  const std::string python = python_with_torch();
  if (python.empty()) {
    GTEST_SKIP() << "no Python with torch: set STRETTO_TORCH_PYTHON to one, or run ./dev demo";
  }
  const TorchServer server(python);
  ASSERT_NE(server.port(), 0) << python << " has torch, but its TCPStore has not begun";
  const auto open = [&](const std::string& prefix) -> std::shared_ptr<Store> {
    return std::make_shared<PrefixStore>(
        prefix,
        connect_torch_store({.host = "127.0.0.1", .port = server.port()}, soon()).or_throw());
  };
  for (const Check& check : kContract) {
    SCOPED_TRACE(check.name);
    const std::string prefix = fmt::format("{}/", &check - kContract);
    check.run({open(prefix), open(prefix)});
  }
}

}  // namespace
}  // namespace stretto::bootstrap

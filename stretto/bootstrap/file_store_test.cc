// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/file_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "stretto/base/file_descriptor.h"
#include "stretto/bootstrap/file_log.h"
#include "tests/support/expect_contains.h"
#include "tests/support/files.h"
#include "tests/support/in_child.h"
#include "tests/support/soon.h"

namespace stretto::bootstrap {
namespace {

using std::chrono::milliseconds;
using Keys = std::vector<std::string>;

class FileStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<Store> open() { return open_file_store(path_, soon()).or_throw(); }
  std::string content() const { return read_file(path_); }
  void write(const std::string& content) const {
    write_file(path_, content);
    ::chmod(path_.c_str(), 0600);
  }
  void expect_refused(StatusCode code, const std::string& sentence) const {
    expect_failure(open_file_store(path_, soon()).status(), code, sentence);
  }

  const TemporaryFolder folder_;
  std::string path_ = folder_ / "store";
};

TEST_F(FileStoreTest, IsReadableByItsOwnerOnlyAndOutlivesItsObjects) {
  ASSERT_TRUE(open()->set("key", "value", soon()).ok());
  struct stat state {};
  ASSERT_EQ(::stat(path_.c_str(), &state), 0);
  EXPECT_EQ(state.st_mode & 07777, 0600u);
  EXPECT_EQ(open()->get("key", soon()).or_throw(), "value");
}

TEST_F(FileStoreTest, LosesNoAdditionOfAnyProcess) {
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto store = open_file_store(path_, soon());
      bool ok = store.ok();
      for (int k = 0; ok && k < 50; ++k) ok = store.value()->add("count", 1, soon()).ok();
      ::_exit(ok ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(open()->get("count", soon()).or_throw(), "200");
}

// A writer that is killed may leave any number of bytes of its last record.
TEST_F(FileStoreTest, IgnoresHalfARecordAndWritesOverIt) {
  ASSERT_TRUE(open()->set("a", "1", soon()).ok());
  const std::string before = content();
  // This record is longer than the one that is written over it. No rest of it may show.
  ASSERT_TRUE(open()->set("b", std::string(40, '2'), soon()).ok());
  const std::string after = content();
  for (std::size_t bytes = 0; bytes < after.size(); ++bytes) {
    write(after.substr(0, bytes));
    const auto store = open();
    EXPECT_EQ(store->check(Keys{"a"}, soon()).or_throw(), bytes >= before.size()) << bytes;
    EXPECT_FALSE(store->check(Keys{"b"}, soon()).or_throw()) << bytes;
    ASSERT_TRUE(store->set("c", "3", soon()).ok()) << bytes;
    EXPECT_EQ(open()->get("c", soon()).or_throw(), "3") << bytes;
    ASSERT_TRUE(open()->check(Keys{"b"}, soon()).ok()) << bytes;
    EXPECT_FALSE(open()->check(Keys{"b"}, soon()).or_throw()) << bytes;
  }
}

TEST_F(FileStoreTest, SeesWhatAnotherWritesAfterHalfARecord) {
  const auto reader = open();
  ASSERT_TRUE(reader->set("a", "1", soon()).ok());
  std::ofstream(path_, std::ios::binary | std::ios::app)
      << encode_file_record("b", "2").substr(0, 5);
  EXPECT_FALSE(reader->check(Keys{"b"}, soon()).or_throw());
  ASSERT_TRUE(open()->set("c", "3", soon()).ok());
  EXPECT_EQ(reader->get("c", soon()).or_throw(), "3");
}

TEST_F(FileStoreTest, SaysThatARecordIsDamaged) {
  ASSERT_TRUE(open()->set("key", "value", soon()).ok());
  const std::string good = content();
  const std::size_t record_bytes = encode_file_record("key", "value").size();
  for (std::size_t at = good.size() - record_bytes; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x04);
    write(bad);
    const auto store = open_file_store(path_, soon());
    // A length that has grown looks like half a record; nothing else may pass.
    if (store.ok()) {
      EXPECT_FALSE(store.value()->check(Keys{"key"}, soon()).or_throw()) << at;
    } else {
      EXPECT_EQ(store.status().code(), StatusCode::protocol) << at;
    }
    EXPECT_EQ(content(), bad);
  }
}

TEST_F(FileStoreTest, LeavesAFileOfAnotherKindAlone) {
  for (const char* text : {"x", "stretto stone", "#!/bin/sh\necho a script of somebody\n"}) {
    write(text);
    expect_refused(StatusCode::refused, "the file holds something else than a store");
    EXPECT_EQ(content(), text);
  }
}

TEST_F(FileStoreTest, RefusesAFileThatOthersMayRead) {
  write("");
  ::chmod(path_.c_str(), 0640);
  expect_refused(StatusCode::refused, "others may read or write it (mode 640)");
  std::filesystem::remove(path_);
  ASSERT_EQ(::symlink("/etc/passwd", path_.c_str()), 0);
  expect_refused(StatusCode::system, "opening the file " + path_);
  std::filesystem::remove(path_);
  path_ = "/no such folder/store";
  expect_refused(StatusCode::system, "No such file or directory");
}

TEST_F(FileStoreTest, EndsAWaitWhenTheFileIsRemoved) {
  const auto store = open();
  std::thread remover([&] {
    std::this_thread::sleep_for(milliseconds(20));
    std::filesystem::remove(path_);
  });
  const Status status = store->get("never", soon()).status();
  remover.join();
  expect_failure(status, StatusCode::peer_lost, "the file has been removed");
}

// NFS renames a file that is removed while somebody has it open.
TEST_F(FileStoreTest, AFileThatHasAnotherNameNowHasBeenRemoved) {
  const auto store = open();
  ASSERT_TRUE(store->set("key", "value", soon()).ok());
  ASSERT_EQ(::rename(path_.c_str(), (path_ + ".other").c_str()), 0);
  expect_failure(store->get("never", soon()).status(), StatusCode::peer_lost,
                 "the file has been removed");
  EXPECT_EQ(store->get("key", soon()).value(), "value") << "what is there can still be read";
  const auto next = open();
  expect_failure(store->set("key", "again", soon()), StatusCode::peer_lost,
                 "the file has been removed");
  expect_failure(next->get("key", Deadline::after(milliseconds(5))).status(), StatusCode::timeout,
                 "nobody has set it in time");
}

TEST_F(FileStoreTest, ExecutesTheWillsOfThoseWhoAreGoneOnly) {
  const auto store = open();
  auto watch = store->watch("news", {"one is gone", "all well"}, soon()).or_throw();
  const auto other = store->watch("news", {"other is gone", "all well"}, soon()).or_throw();
  // After this time the next request executes wills.
  std::this_thread::sleep_for(milliseconds(250));
  EXPECT_FALSE(other->look().or_throw());
  watch.reset();
  EXPECT_TRUE(comes_true([&] { return other->look().or_throw() == "one is gone"; }));
}

TEST_F(FileStoreTest, ExecutesAWillOnceWhateverTheKeysHold) {
  const auto store = open();
  const std::string key = "news\nof 5 bytes", revoked_by = "1 \n";
  (void)store->watch(key, {"one is gone", revoked_by}, soon()).or_throw();
  EXPECT_EQ(store->get(key, soon()).or_throw(), "one is gone");
  EXPECT_TRUE(store->delete_key(key, soon()).or_throw());
  (void)store->watch("other", {}, soon()).or_throw();  // It leaves no will.
  std::this_thread::sleep_for(milliseconds(250));
  for (const std::string& name : {key, std::string("other"), std::string("news")}) {
    EXPECT_FALSE(store->check(std::vector{name}, soon()).or_throw()) << name;
  }
}

TEST_F(FileStoreTest, AWaitWithoutAWatchExecutesWills) {
  const auto waiting = open();
  const auto leaving = open();
  (void)leaving->watch("news", {"one is gone", "all well"}, soon()).or_throw();
  EXPECT_EQ(waiting->get("news", soon()).or_throw(), "one is gone");
}

TEST_F(FileStoreTest, AForkedChildNeitherUsesTheFileNorEndsTheLifeOfItsParent) {
  const auto store = open();
  auto watch = store->watch("news", {"one is gone", "all well"}, soon()).or_throw();
  const int code = stretto::testing::exit_code_in_child([&] {
    watch.reset();
    return store->set("key", "value", soon()).code() == StatusCode::invalid_argument ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(open()->get("news", Deadline::after(milliseconds(500))).status().code(),
            StatusCode::timeout);
}

TEST_F(FileStoreTest, WaitsForALockNoLongerThanItsDeadline) {
  const auto store = open();
  const FileDescriptor other(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_len = 1;
  ASSERT_EQ(::fcntl(other.get(), F_OFD_SETLK, &lock), 0);
  const TimePoint start = Clock::now();
  const Status status = store->set("key", "value", Deadline::after(milliseconds(50)));
  expect_failure(status, StatusCode::timeout, "another process has kept the file locked");
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  lock.l_type = F_UNLCK;
  ASSERT_EQ(::fcntl(other.get(), F_OFD_SETLK, &lock), 0);
  EXPECT_TRUE(store->set("key", "value", soon()).ok());
}

}  // namespace
}  // namespace stretto::bootstrap

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/status_board.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>

#include "tests/support/fake_environment.h"
#include "tests/support/forbid.h"
#include "tests/support/in_child.h"
#include "tests/support/soon.h"

namespace stretto::job {
namespace {

// Opens the board as rank 1 of a job of 2, as the launcher has numbered it.
StatusBoard open(const std::string& fd, const std::string& local_rank, int rank = 1, int size = 2) {
  return StatusBoard::open(FakeEnvironment({{"STRETTO_STATUS_FD", fd},
                                            {"STRETTO_LOCAL_RANK", local_rank},
                                            {"STRETTO_RANK", "1"},
                                            {"STRETTO_SIZE", "2"}}),
                           rank, size);
}

TEST(StatusBoard, ShowsTheLastNoteOfEachRank) {
  const LauncherBoard reader(2, 2);
  StatusBoard board = open(std::to_string(reader.fd()), "1");
  ASSERT_TRUE(board.connected());
  EXPECT_FALSE(reader.read(1).has_value()) << "nothing written yet";
  board.write("all_reduce(sum f32 [1048576]) #412");
  board.write("barrier() #413");
  ASSERT_TRUE(reader.read(1).has_value());
  EXPECT_EQ(reader.read(1)->text, "barrier() #413");
  EXPECT_LT(Clock::now() - reader.read(1)->written, std::chrono::seconds(5));
  EXPECT_FALSE(reader.read(0).has_value()) << "another rank's slot";
  EXPECT_FALSE(reader.read(2).has_value()) << "no such slot";
}

TEST(StatusBoard, AnotherProcessHasWrittenNothing) {
  const LauncherBoard reader(2, 2);
  StatusBoard board = open(std::to_string(reader.fd()), "1");
  board.write("barrier() #413");
  reader.clear(1);
  EXPECT_FALSE(reader.read(1).has_value());
  reader.write_obituary(0, "killed");
  reader.promise_obituary(0);
  EXPECT_EQ(board.find_obituary(0), "") << "promised once more";
  board.write("barrier() #1");
  EXPECT_EQ(reader.read(1)->text, "barrier() #1");
}

TEST(StatusBoard, CutsLongNotesAndDefusesControlCharacters) {
  const LauncherBoard reader(1, 2);
  StatusBoard board = open(std::to_string(reader.fd()), "0");
  board.write(std::string(1000, 'x'));
  EXPECT_EQ(reader.read(0)->text, std::string(kStatusTextBytes, 'x'));
  board.write("\x1b[2J");
  EXPECT_EQ(reader.read(0)->text, "?[2J");
}

TEST(StatusBoard, IsSilentWithoutALauncher) {
  const LauncherBoard reader(1, 2);
  const int other_file = ::memfd_create("other", 0);
  for (StatusBoard board :
       {StatusBoard(), StatusBoard::open(FakeEnvironment({}), 0, 1), open("x", "0"),
        open("-1", "0"), open("100000", "0"), open(std::to_string(other_file), "0"),
        open(std::to_string(reader.fd()), "3"), open(std::to_string(reader.fd()), "-1")}) {
    EXPECT_FALSE(board.connected());
    board.write("nobody reads this");
  }
}

TEST(StatusBoard, AReaderNeverSeesHalfANote) {
  const LauncherBoard reader(1, 2);
  StatusBoard board = open(std::to_string(reader.fd()), "0");
  const std::string notes[] = {std::string(100, 'a'), std::string(200, 'b')};
  board.write(notes[0]);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int i = 0; !stop; i = 1 - i) {
      board.write(notes[i]);
      std::this_thread::yield();
    }
  });
  int mixed = 0, changes = 0;
  std::string last;
  // Reads many times, and until the note has changed often enough between two reads.
  const Deadline deadline = soon();
  for (int i = 0; i < 2000 || (changes < 200 && !deadline.passed()); ++i) {
    const std::string text = reader.read(0)->text;
    mixed += text != notes[0] && text != notes[1];
    changes += text != std::exchange(last, text);
  }
  stop = true;
  writer.join();
  EXPECT_EQ(mixed, 0);
  EXPECT_GE(changes, 200) << "it has not been written while it was read";
}

TEST(StatusBoard, TellsHowRanksHaveEnded) {
  const LauncherBoard launcher(1, 2);
  StatusBoard board = open(std::to_string(launcher.fd()), "0");
  EXPECT_EQ(board.find_obituary(0), std::nullopt) << "nobody looks after it";
  launcher.promise_obituary(0);
  EXPECT_EQ(board.find_obituary(0), "") << "it lives";
  launcher.write_obituary(0, "killed by SIGKILL\x1b[2J");
  board.write("barrier() #1");
  EXPECT_EQ(board.find_obituary(0), "killed by SIGKILL?[2J");
  EXPECT_EQ(board.find_obituary(1), std::nullopt) << "another rank's";
  EXPECT_EQ(board.find_obituary(2), std::nullopt) << "no such rank";
  EXPECT_EQ(board.find_obituary(-1), std::nullopt) << "no such rank";
  launcher.write_obituary(2, "no such rank");
  EXPECT_EQ(launcher.read(0)->text, "barrier() #1");
}

TEST(StatusBoard, SaysNothingOfRanksThatHaveOtherNumbersThanTheLaunchers) {
  const LauncherBoard launcher(1, 2);
  launcher.write_obituary(0, "killed by SIGKILL");
  const std::string fd = std::to_string(launcher.fd());
  EXPECT_TRUE(open(fd, "0").find_obituary(0).has_value());
  EXPECT_EQ(open(fd, "0", 0, 2).find_obituary(0), std::nullopt) << "another rank";
  EXPECT_EQ(open(fd, "0", 1, 3).find_obituary(0), std::nullopt) << "another job";
  EXPECT_EQ(open(fd, "1").find_obituary(0), std::nullopt) << "its own slot is one of those";
}

TEST(StatusBoard, IsEmptyWhereTheSystemHasNoFilesInMemory) {
  const int code = stretto::testing::exit_code_in_child([&] {
    stretto::testing::forbid({SYS_memfd_create}, ENOSYS);
    const LauncherBoard reader(2, 2);
    return reader.fd() < 0 && !reader.read(0) ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace stretto::job

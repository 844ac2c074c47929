// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tools/launch/child.h"
#include "tools/launch/outcome.h"
#include "tools/launch/output_relay.h"

namespace stretto::launch {
namespace {

using std::chrono::milliseconds;

const TimePoint kStart = TimePoint(std::chrono::hours(1));

RankOutcome exited(int rank, int code, int after_ms) {
  return {.rank = rank,
          .pid = 100 + rank,
          .exit_code = code,
          .started = kStart,
          .ended = kStart + milliseconds(after_ms)};
}

RankOutcome killed(int rank, int signal, int after_ms) {
  RankOutcome outcome = exited(rank, 0, after_ms);
  outcome.signal = signal;
  return outcome;
}

int first_failure(const std::vector<RankOutcome>& ranks) {
  const JobOutcome outcome{.ranks = ranks};
  return outcome.first_failure() == nullptr ? -1 : outcome.first_failure()->rank;
}

TEST(JobOutcome, TheFirstToFailIsTheCause) {
  EXPECT_EQ(first_failure({exited(0, 0, 1), exited(1, 0, 2)}), -1);
  EXPECT_EQ(first_failure({exited(0, 1, 30), exited(1, 0, 10), exited(2, 1, 20)}), 2);
}

TEST(JobOutcome, ADeathNoticedALittleLateIsStillTheCause) {
  EXPECT_EQ(first_failure({exited(0, 1, 10), killed(1, SIGKILL, 50)}), 1);
  EXPECT_EQ(first_failure({exited(0, 1, 10), killed(1, SIGKILL, 500)}), 0);
  EXPECT_EQ(first_failure({exited(0, 1, 10), killed(1, SIGABRT, 50)}), 0)
      << "a rank that does not catch the error about its peer aborts";
  EXPECT_EQ(first_failure({exited(0, 1, 10), killed(1, SIGSEGV, 60), killed(2, SIGBUS, 50)}), 2);
  RankOutcome by_launcher = killed(1, SIGKILL, 50);
  by_launcher.told_to_end = true;
  EXPECT_EQ(first_failure({exited(0, 1, 10), by_launcher}), 0);
}

TEST(JobOutcome, ExitStatusIsThatOfTheFirstFailure) {
  EXPECT_EQ((JobOutcome{.ranks = {exited(0, 0, 1)}}).exit_status(), 0);
  EXPECT_EQ((JobOutcome{.ranks = {exited(0, 3, 1), exited(1, 4, 2)}}).exit_status(), 3);
  EXPECT_EQ((JobOutcome{.ranks = {killed(0, SIGTERM, 1)}}).exit_status(), 143);
  EXPECT_EQ(
      (JobOutcome{.ranks = {killed(0, SIGTERM, 1)}, .time_limit_reached = true}).exit_status(),
      124);
}

TEST(Report, SaysWhoHowAndDuringWhat) {
  RankOutcome dead = killed(2, SIGKILL, 3200);
  dead.last_note =
      job::StatusNote{"all_reduce(sum f32 [1048576]) #412", kStart + milliseconds(2800)};
  RankOutcome ended = killed(0, SIGTERM, 5200);
  ended.told_to_end = true;
  ended.signals_sent = {SIGTERM};
  RankOutcome gave_in = exited(4, 1, 5300);
  gave_in.told_to_end = true;
  gave_in.signals_sent = {SIGTERM};
  const JobOutcome outcome{.ranks = {ended, exited(1, 1, 3300), dead, exited(3, 0, 3000), gave_in},
                           .out_of_memory_kills = 1};
  EXPECT_EQ(report(outcome),
            "stretto run: rank 2 failed first: SIGKILL (killed from outside, possibly by the "
            "out-of-memory killer); pid 102, 3.2 s after its start; its last operation was "
            "all_reduce(sum f32 [1048576]) #412, begun 0.4 s before\n"
            "stretto run: the out-of-memory killer has struck in this control group (oom_kill +1)\n"
            "stretto run: rank 0: SIGTERM (sent by this launcher), 2.0 s later\n"
            "stretto run: rank 1: exit code 1, 0.1 s later\n"
            "stretto run: rank 3: ended well, 0.2 s earlier\n"
            "stretto run: rank 4: exit code 1, after it had been told to end, 2.1 s later\n");
}

TEST(Report, TellsOfARestart) {
  RankOutcome dead = killed(2, SIGSEGV, 3200);
  dead.last_note = job::StatusNote{"barrier() #412", kStart + milliseconds(2800)};
  EXPECT_EQ(restart_notice(dead, 1, 3),
            "rank 2 failed: SIGSEGV (a crash: access to memory it does not have); its last "
            "operation was barrier() #412, begun 0.4 s before; it is started again (restart 1 of "
            "3)");
}

TEST(Report, SaysWhichLimitASignalIsAbout) {
  EXPECT_EQ(describe_end(killed(0, SIGXFSZ, 1)),
            "SIGXFSZ (it wrote more than the limit on the size of files allows: see `ulimit -f`)");
  EXPECT_EQ(describe_end(killed(0, SIGXCPU, 1)),
            "SIGXCPU (it reached the limit on processor time: see `ulimit -t`)");
}

TEST(Report, TellsThoseWhoAreLeftWhatHasKilledARank) {
  RankOutcome dead = killed(2, SIGKILL, 3200);
  EXPECT_EQ(obituary_of(dead, 0), "killed by SIGKILL (from outside)");
  EXPECT_EQ(obituary_of(dead, std::nullopt),
            "killed by SIGKILL (from outside, possibly by the out-of-memory killer)");
  dead.last_note = job::StatusNote{"barrier() #412", kStart + milliseconds(2800)};
  EXPECT_EQ(obituary_of(dead, 1),
            "killed by SIGKILL (likely out of memory: the oom_kill count of its control group has "
            "risen); its last operation was barrier() #412, begun 0.4 s before");
  RankOutcome told = killed(0, SIGTERM, 1);
  EXPECT_EQ(obituary_of(told, 0), "killed by SIGTERM");
  told.signals_sent = {SIGTERM};
  EXPECT_EQ(obituary_of(told, 0), "killed by SIGTERM (sent by its launcher)");
  EXPECT_EQ(obituary_of(exited(0, 3, 1), 0), "ended with exit code 3");
  EXPECT_EQ(obituary_of(exited(0, 0, 1), 0), "ended with exit code 0 without leaving the job");
  RankOutcome lost = exited(0, 255, 1);
  lost.lost = "lost with its host";
  EXPECT_EQ(obituary_of(lost, 0), "lost with its host");
}

TEST(Report, KnowsWhatAShellTellsOfTheProgramItRan) {
  EXPECT_EQ(
      describe_end(exited(0, 128 + SIGSEGV, 1)),
      "exit code 139, by which a shell reports SIGSEGV (a crash: access to memory it does not "
      "have)");
  EXPECT_EQ(describe_end(exited(0, 200, 1)), "exit code 200");
  EXPECT_EQ(first_failure({exited(0, 1, 10), exited(1, 128 + SIGKILL, 50)}), 1);
}

TEST(Report, DoesNotSuspectOthersOfWhatTheLauncherDid) {
  RankOutcome stubborn = killed(0, SIGKILL, 9000);
  stubborn.told_to_end = true;
  stubborn.signals_sent = {SIGTERM, SIGKILL};
  EXPECT_EQ(report({.ranks = {stubborn}, .ended_by = SIGTERM}),
            "stretto run: the job was ended because this launcher was sent SIGTERM\n"
            "stretto run: rank 0: SIGKILL (sent by this launcher)\n");
  const auto json = nlohmann::json::parse(report_json({.ranks = {stubborn}, .ended_by = SIGTERM}));
  EXPECT_EQ(json["ended_by"], "SIGTERM");
  EXPECT_TRUE(json["first_failure"].is_null()) << "nobody failed before being told to end";
}

TEST(Report, IsEmptyWhenAllWentWell) {
  EXPECT_EQ(report({.ranks = {exited(0, 0, 1), exited(1, 0, 1)}}), "");
}

TEST(Report, AtTheTimeLimitNobodyFailedFirst) {
  RankOutcome ended = killed(0, SIGTERM, 9000);
  ended.told_to_end = true;
  ended.signals_sent = {SIGTERM};
  ended.last_note = job::StatusNote{"barrier() #7", kStart};
  EXPECT_EQ(
      report({.ranks = {ended}, .time_limit = std::chrono::seconds(9), .time_limit_reached = true}),
      "stretto run: the job was ended because it took longer than 9 s\n"
      "stretto run: rank 0: SIGTERM (sent by this launcher); its last operation was barrier() #7, "
      "begun 9.0 s before\n");
}

TEST(Report, JsonTellsProgramsTheSame) {
  const auto json =
      nlohmann::json::parse(report_json({.ranks = {exited(0, 5, 20), killed(1, SIGTERM, 30)}}));
  EXPECT_EQ(json["exit_status"], 5);
  EXPECT_EQ(json["first_failure"], 0);
  EXPECT_EQ(json["ranks"][0]["exit_code"], 5);
  EXPECT_TRUE(json["ranks"][0]["signal"].is_null());
  EXPECT_EQ(json["ranks"][1]["signal"], "SIGTERM");
  EXPECT_TRUE(nlohmann::json::parse(report_json({}))["first_failure"].is_null());
}

TEST(Report, JsonTellsWhatIsKnownOfRanksThatNobodyHasSeenEnd) {
  const auto json = nlohmann::json::parse(report_json(
      {.ranks = {exited(0, 5, 20), {.rank = 1, .pid = 101}, {.rank = 2}}, .launcher_status = 1}));
  EXPECT_EQ(json["exit_status"], 1);
  EXPECT_EQ(json["first_failure"], 0);
  EXPECT_EQ(json["ranks"][1]["pid"], 101);
  EXPECT_TRUE(json["ranks"][2]["pid"].is_null());
  for (const char* end : {"exit_code", "signal", "seconds"}) {
    EXPECT_TRUE(json["ranks"][1][end].is_null()) << end;
  }
}

// Returns what is shown when the last piece has come and, behind "|", what the pipe's end adds.
std::string prefixed(std::initializer_list<std::string_view> pieces) {
  LinePrefixer lines("[3] ");
  std::string output;
  for (std::string_view piece : pieces) {
    lines.add(piece);
    output += lines.take(false, true);
  }
  lines.finish();
  return output + "|" + lines.take(true, true);
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> bytes;
  ssize_t count = 0;
  while ((count = ::read(fd, bytes.data(), bytes.size())) > 0) {
    text.append(bytes.data(), static_cast<std::size_t>(count));
  }
  return text;
}

TEST(LinePrefixer, PutsAPrefixBeforeEachLineHoweverTheBytesCome) {
  EXPECT_EQ(prefixed({}), "|");
  EXPECT_EQ(prefixed({"one\ntwo\n"}), "[3] one\n[3] two\n|");
  EXPECT_EQ(prefixed({"o", "ne", "\n", "\ntw", "o\n"}), "[3] one\n[3] \n[3] two\n|");
}

TEST(LinePrefixer, KeepsTheLastLineWithoutALineEnd) {
  EXPECT_EQ(prefixed({"one\nlast wor", "ds"}), "[3] one\n|[3] last words\n");
}

TEST(LinePrefixer, ACarriageReturnEndsALine) {
  EXPECT_EQ(prefixed({"1 of 2\r2 of 2", "\r", "done\n"}), "[3] 1 of 2\r[3] 2 of 2\r[3] done\n|");
  EXPECT_EQ(prefixed({"1 of 2\r"}), "[3] 1 of 2\r|\n");
  EXPECT_EQ(prefixed({"\r1 of 2", "\r", "\r2 of 2"}), "[3] 1 of 2\r|[3] 2 of 2\n");
  EXPECT_EQ(prefixed({"one\r\ntwo\r", "\n"}), "[3] one\r\n[3] two\r\n|");
}

TEST(LinePrefixer, HoldsNoMoreThanALongestLine) {
  EXPECT_EQ(prefixed({std::string(LinePrefixer::kLongestLine - 1, 'x')}).find('|'), 0u);
  const std::string most(LinePrefixer::kLongestLine, 'x');
  EXPECT_EQ(prefixed({most, "y\n"}), "[3] " + most + "y\n|");
}

TEST(LinePrefixer, RepeatsThePrefixOnlyWhereOthersHaveEndedTheLine) {
  LinePrefixer lines("[3] ");
  const auto all = [&](std::string_view bytes, bool in_place) {
    lines.add(bytes);
    return lines.take(true, in_place);
  };
  EXPECT_EQ(all("load", false), "[3] load");
  EXPECT_EQ(all("ed ", true), "ed ");
  EXPECT_EQ(all("all\nand", false), "[3] all\n[3] and");
  EXPECT_EQ(all("\n", false), "") << "the line has its end";
  EXPECT_EQ(all("1 of 2\r", false), "[3] 1 of 2\r");
  lines.finish();
  EXPECT_EQ(all("", false), "");
}

TEST(LinePrefixer, ChangesNoByteWithoutAPrefix) {
  std::string bytes(3 * LinePrefixer::kLongestLine + 5, 'x');
  bytes[7] = '\0';
  bytes[100] = '\n';
  bytes[200] = '\r';
  LinePrefixer lines("");
  std::string output;
  for (std::size_t at = 0; at < bytes.size(); at += 1000) {
    lines.add(std::string_view(bytes).substr(at, 1000));
    output += lines.take(false, true);
  }
  lines.finish();
  EXPECT_TRUE(output + lines.take(true, true) == bytes);
}

TEST(MarkedLines, AreTakenOutOfTheLinesOfOthers) {
  MarkedLines lines("\x1emark ");
  std::string output;
  std::string marked;
  lines.add("loading", output, marked);
  EXPECT_EQ(output, "loading");
  for (const char* piece : {" \x1em", "ark one\n", "done\n\x1emark ", "two", "\n\x1em", "ore"}) {
    lines.add(piece, output, marked);
  }
  EXPECT_EQ(output + lines.finish(), "loading done\n\x1emore");
  EXPECT_EQ(marked, "one\ntwo\n");
}

TEST(OutputRelay, SaysOnceThatOutputCannotBeWritten) {
  const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ::testing::internal::CaptureStderr();
  OutputRelay relay;
  // There are two ranks. Both lines of the first are read, and lost, in one piece.
  for (const char* text : {"one\ntwo\n", "three\n"}) {
    Pipe rank = make_pipe().or_throw();
    write_fully(rank.writing.get(), text);
    relay.add(std::move(rank.reading), full.get(), "");
  }
  ASSERT_TRUE(relay.start().ok());
  relay.finish();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "stretto run: some of the ranks' output is lost: No space left on device\n");
}

// A terminal, and two ranks that write to it.
class Terminal : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const int rank : {0, 1}) {
      Pipe pipe = make_pipe().or_throw();
      relay_.add(std::move(pipe.reading), terminal_.writing.get(), rank_prefix(rank, false));
      ranks_.push_back(std::move(pipe.writing));
    }
    ASSERT_TRUE(relay_.start().ok());
  }

  void write(std::size_t rank, std::string_view text) { write_fully(ranks_[rank].get(), text); }
  // Waits until as many bytes have come.
  void expect(const std::string& text) {
    std::string shown(text.size(), '\0');
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t count = ::read(terminal_.reading.get(), &shown[at], text.size() - at);
      ASSERT_GT(count, 0);
      at += static_cast<std::size_t>(count);
    }
    EXPECT_EQ(shown, text);
  }
  void expect_at_end(const std::string& text) {
    relay_.finish();
    terminal_.writing.reset();
    EXPECT_EQ(read_all(terminal_.reading.get()), text);
  }

  Pipe terminal_ = make_pipe().or_throw();
  OutputRelay relay_;
  std::vector<FileDescriptor> ranks_;
};

TEST_F(Terminal, ShowsAnUnfinishedLineThatIsContinued) {
  write(0, "load");
  expect("[0] load");
  write(0, "ed\n");
  expect("ed\n");
  expect_at_end("");
}

TEST_F(Terminal, ALineOfAnotherRankEndsOneThatIsUnfinished) {
  write(0, "load");
  expect("[0] load");
  write(1, "one\n");
  expect("\n[1] one\n");
  write(0, "ed\n1 of 2\r");
  expect("[0] ed\n[0] 1 of 2\r");
  write(1, "1 of 2\r");
  expect("\n[1] 1 of 2\r");
  write(1, "2 of 2\r");
  expect("[1] 2 of 2\r");
  expect_at_end("\n");
}

TEST_F(Terminal, AMarkedLineEndsNone) {
  Pipe events = make_pipe().or_throw();
  relay_.add_marking(std::move(events.reading), terminal_.writing.get(), "\x1emark ");
  write(0, "load");
  expect("[0] load");
  write_fully(events.writing.get(), "one\n");
  expect("\x1emark one\n");
  write(0, "ed\n");
  expect("ed\n");
  expect_at_end("");
}

TEST_F(Terminal, OneUnfinishedLineDoesNotEndAnother) {
  write(0, "load");
  expect("[0] load");
  write(1, "wait");
  std::this_thread::sleep_for(milliseconds(300));
  write(0, "ed\n");
  expect("ed\n[1] wait");
  expect_at_end("\n");
}

TEST(OutputRelay, TakesPipesWhileItRuns) {
  Pipe terminal = make_pipe().or_throw();
  OutputRelay relay;
  ASSERT_TRUE(relay.start().ok());
  Pipe rank = make_pipe().or_throw();
  relay.add(std::move(rank.reading), terminal.writing.get(), "[0] ");
  write_fully(rank.writing.get(), "one\n");
  std::array<char, 8> line;
  EXPECT_EQ(::read(terminal.reading.get(), line.data(), line.size()), 8);
  EXPECT_EQ(std::string_view(line.data(), line.size()), "[0] one\n");
}

TEST(OutputRelay, PassesOnWhatIsStillInThePipesAlthoughSomebodyHoldsThemOpen) {
  Pipe rank = make_pipe().or_throw();
  Pipe terminal = make_pipe().or_throw();
  write_fully(rank.writing.get(), "one\ntwo");
  OutputRelay relay;
  relay.add(std::move(rank.reading), terminal.writing.get(), "[0] ");
  ASSERT_TRUE(relay.start().ok());
  relay.finish();
  terminal.writing.reset();
  EXPECT_EQ(read_all(terminal.reading.get()), "[0] one\n[0] two\n");
}

TEST(RankPrefix, HasColourOnlyWhereItIsWanted) {
  EXPECT_EQ(rank_prefix(3, false), "[3] ");
  EXPECT_EQ(rank_prefix(3, true), "\x1b[34m[3]\x1b[0m ");
  const Pipe pipe = make_pipe().or_throw();
  EXPECT_FALSE(wants_colour(pipe.writing.get()));
}

}  // namespace
}  // namespace stretto::launch

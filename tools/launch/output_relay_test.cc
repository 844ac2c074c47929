// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/output_relay.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

namespace stretto::launch {
namespace {

std::string prefixed(std::initializer_list<std::string_view> pieces) {
  LinePrefixer lines("[3] ");
  std::string output;
  for (std::string_view piece : pieces) lines.add(piece, output);
  lines.finish(output);
  return output;
}

struct Pipe {
  FileDescriptor reading;
  FileDescriptor writing;
};

Pipe make_pipe() {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
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
  EXPECT_EQ(prefixed({}), "");
  EXPECT_EQ(prefixed({"one\ntwo\n"}), "[3] one\n[3] two\n");
  EXPECT_EQ(prefixed({"o", "ne", "\n", "\ntw", "o\n"}), "[3] one\n[3] \n[3] two\n");
}

TEST(LinePrefixer, KeepsTheLastLineWithoutALineEnd) {
  EXPECT_EQ(prefixed({"one\nlast wor", "ds"}), "[3] one\n[3] last words\n");
}

TEST(LinePrefixer, HoldsNoMoreThanALongestLine) {
  LinePrefixer lines("[3] ");
  std::string output;
  lines.add(std::string(LinePrefixer::kLongestLine - 1, 'x'), output);
  EXPECT_EQ(output, "");
  lines.add("x", output);
  EXPECT_EQ(output, "[3] " + std::string(LinePrefixer::kLongestLine, 'x') + "\n");
}

TEST(LinePrefixer, ChangesNoByteWithoutAPrefix) {
  std::string bytes(3 * LinePrefixer::kLongestLine + 5, 'x');
  bytes[7] = '\0';
  bytes[100] = '\n';
  LinePrefixer lines("");
  std::string output;
  for (std::size_t at = 0; at < bytes.size(); at += 1000) {
    lines.add(std::string_view(bytes).substr(at, 1000), output);
  }
  lines.finish(output);
  EXPECT_TRUE(output == bytes);
}

TEST(OutputRelay, SaysOnceThatOutputCannotBeWritten) {
  Pipe rank = make_pipe();
  ::fcntl(rank.reading.get(), F_SETFL, O_NONBLOCK);
  write_fully(rank.writing.get(), "one\ntwo\n");
  const FileDescriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ::testing::internal::CaptureStderr();
  OutputRelay relay;
  relay.add(std::move(rank.reading), full.get(), "");
  ASSERT_TRUE(relay.start().ok());
  relay.finish();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "stretto run: some of the ranks' output is lost: No space left on device\n");
}

TEST(OutputRelay, PassesOnWhatIsStillInThePipesAlthoughSomebodyHoldsThemOpen) {
  Pipe rank = make_pipe();
  Pipe terminal = make_pipe();
  ::fcntl(rank.reading.get(), F_SETFL, O_NONBLOCK);
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
  const Pipe pipe = make_pipe();
  EXPECT_FALSE(wants_colour(pipe.writing.get()));
}

}  // namespace
}  // namespace stretto::launch

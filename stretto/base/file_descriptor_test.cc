// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/file_descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include <gtest/gtest.h>

namespace stretto {
namespace {

bool is_open(int number) { return ::fcntl(number, F_GETFD) != -1; }

int open_something() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

TEST(FileDescriptorTest, ClosesWhatItOwns) {
  int number = -1;
  {
    const FileDescriptor file(open_something());
    ASSERT_TRUE(file.valid());
    number = file.get();
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(FileDescriptorTest, MovingHandsOverAndClosesTheFormer) {
  FileDescriptor first(open_something());
  FileDescriptor second(open_something());
  const int kept = first.get();
  const int closed = second.get();
  second = std::move(first);
  EXPECT_FALSE(first.valid());
  EXPECT_EQ(second.get(), kept);
  EXPECT_TRUE(is_open(kept));
  EXPECT_FALSE(is_open(closed));
}

TEST(FileDescriptorTest, ReleasedIsNotClosed) {
  FileDescriptor file(open_something());
  const int number = file.release();
  EXPECT_FALSE(file.valid());
  file.reset();
  EXPECT_TRUE(is_open(number));
  ::close(number);
}

}  // namespace
}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/file_size_signal.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/status.h"

namespace stretto {
namespace {

// Makes a file too large and returns the errno of that.
int exceed_limit() {
  const FileDescriptor file(::memfd_create("too-large", MFD_CLOEXEC));
  return ::ftruncate(file.get(), 1 << 20) == 0 ? 0 : errno;
}

class FileSizeSignal : public ::testing::Test {
 protected:
  FileSizeSignal() {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{.rlim_cur = 4096, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~FileSizeSignal() override { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(FileSizeSignal, BecomesAnErrorThatSaysWhichLimit) {
  {
    const FileSizeSignalBlocked blocked;
    EXPECT_EQ(exceed_limit(), EFBIG);
    EXPECT_EQ(exceed_limit(), EFBIG);
  }
  EXPECT_EQ(system_status("reserving memory", EFBIG).message(),
            "reserving memory: File too large; raise `ulimit -f`");
}

TEST_F(FileSizeSignal, EndsTheProcessAgainAfterwards) {
  { const FileSizeSignalBlocked blocked; }
  EXPECT_EXIT(exceed_limit(), ::testing::KilledBySignal(SIGXFSZ), "");
}

}  // namespace
}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <vector>

#include "stretto/base/file_descriptor.h"

// Limits this process's resources as a small limit (ulimit) does.
namespace stretto::testing {

// During its lifetime, the soft limit of a resource is at most `limit`.
class LowLimit {
 public:
  LowLimit(__rlimit_resource_t resource, rlim_t limit) : resource_(resource) {
    ::getrlimit(resource_, &before_);
    const rlimit low{.rlim_cur = std::min(limit, before_.rlim_max), .rlim_max = before_.rlim_max};
    ::setrlimit(resource_, &low);
  }
  ~LowLimit() { ::setrlimit(resource_, &before_); }
  LowLimit(const LowLimit&) = delete;
  LowLimit& operator=(const LowLimit&) = delete;

 private:
  __rlimit_resource_t resource_;
  rlimit before_{};
};

// During its lifetime, the process can open `left` files more, and no others.
class FewDescriptors {
 public:
  explicit FewDescriptors(std::size_t left) : limit_(RLIMIT_NOFILE, highest() + 8) {
    while (true) {
      FileDescriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!file.valid()) break;
      used_.push_back(std::move(file));
    }
    used_.resize(used_.size() - std::min(left, used_.size()));
  }

 private:
  static rlim_t highest() {
    int last = 0;
    for (int number = 0; number < 4096; ++number) {
      if (::fcntl(number, F_GETFD) >= 0) last = std::max(last, number);
    }
    return static_cast<rlim_t>(last);
  }

  LowLimit limit_;
  std::vector<FileDescriptor> used_;
};

// During its lifetime, the process can map `left_bytes` bytes more.
class LittleAddressSpace {
 public:
  explicit LittleAddressSpace(std::size_t left_bytes) : limit_(RLIMIT_AS, used() + left_bytes) {}

 private:
  static rlim_t used() {
    std::ifstream file("/proc/self/statm");
    rlim_t pages = 0;
    file >> pages;
    return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
  }

  LowLimit limit_;
};

}  // namespace stretto::testing

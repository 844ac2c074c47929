// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A job whose last rank lacks something while the others allocate shared memory:
//   shortage_rank_program files|addresses passing|lasting reduce|split|scale
// Each rank prints "right", or "failed" and why.

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "stretto/stretto.h"
#include "tests/support/shortage.h"

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kCount = 16 * 1024 * 1024;
// Less than a group's window, and far less than a buffer.
constexpr std::size_t kBytesLeft = 1024 * 1024;

// Takes descriptors or address space from this rank while it exists.
class Shortage {
 public:
  explicit Shortage(const std::string& what) {
    if (what == "files") files_.emplace(0);
    if (what == "addresses") addresses_.emplace(kBytesLeft);
  }

 private:
  std::optional<stretto::testing::FewDescriptors> files_;
  std::optional<stretto::testing::LittleAddressSpace> addresses_;
};

void reduce(stretto::Communicator& comm, stretto::Buffer<float>& buffer) {
  for (float& element : buffer) element = 1.0f;
  comm.all_reduce(buffer).wait();
  const bool right = buffer[0] == static_cast<float>(comm.size()) &&
                     buffer[kCount - 1] == static_cast<float>(comm.size());
  std::printf(right ? "right\n" : "wrong\n");
}

// A reduce with a factor needs registered memory, which is lent for it.
void scale(stretto::Communicator& comm, stretto::Buffer<float>& buffer) {
  for (float& element : buffer) element = 1.0f;
  comm.reduce(buffer, {.root = 0, .factor = 2}).wait();
  const float expected = comm.rank() == 0 ? 2.0f * static_cast<float>(comm.size()) : 1.0f;
  std::printf(buffer[kCount - 1] == expected ? "right\n" : "wrong\n");
}

void split(stretto::Communicator& comm) {
  const auto part = comm.split({.color = 0});
  float sum[1] = {1.0f};
  part->all_reduce(std::span<float>(sum)).wait();
  std::printf(sum[0] == static_cast<float>(comm.size()) ? "right\n" : "wrong\n");
}

void work(const std::string& what, bool passes, const std::string& where) {
  auto comm = stretto::join({.join_timeout = 20s, .timeout = 40s});
  const bool lacks = comm->rank() == comm->size() - 1;
  stretto::Buffer<float> buffer;
  std::unique_ptr<Shortage> shortage;
  std::thread end;
  if (lacks) {
    buffer = comm->allocate<float>(kCount);
    // By then, all descriptors that were opened for joining are closed.
    std::this_thread::sleep_for(1s);
    if (passes) {
      // The thread is made before, as it needs what will be lacking.
      end = std::thread([&] {
        std::this_thread::sleep_for(700ms);
        shortage.reset();
      });
    }
    shortage = std::make_unique<Shortage>(what);
  }
  comm->barrier().wait();
  try {
    if (!lacks) buffer = comm->allocate<float>(kCount);
    if (where == "reduce") reduce(*comm, buffer);
    if (where == "split") split(*comm);
    if (where == "scale") scale(*comm, buffer);
  } catch (const stretto::Error& error) {
    std::printf("failed %d: %s\n", error.status().rank().value_or(-1).value(), error.what());
  }
  if (end.joinable()) end.join();
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 4) return 2;
  work(arguments[1], arguments[2] == std::string("passing"), arguments[3]);
  return 0;
}

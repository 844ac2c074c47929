// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A long and bad cable between two network namespaces:
//   lossy_cable_program NAMESPACE NAMESPACE DELAY_MS LOSS_PERMILLE
// gives the first the address 10.78.0.1 and the second 10.78.0.2, says "up", and passes packets on
// until it is killed. Kernels have netem for this, where it was not left out.

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/clock.h"
#include "stretto/base/file_descriptor.h"
#include "stretto/base/random.h"
#include "stretto/base/status.h"
#include "tests/end_to_end/rank_program.h"

namespace {

using stretto::FileDescriptor;

struct Packet {
  stretto::TimePoint due;
  std::vector<char> bytes;
};

int check(int result, const std::string& what) {
  if (result < 0) stretto::system_status(what).or_throw();
  return result;
}

// A packet device in a namespace; this process stays in the namespace.
FileDescriptor open_device(const std::string& space, int end) {
  const FileDescriptor place(::open(("/var/run/netns/" + space).c_str(), O_RDONLY | O_CLOEXEC));
  check(::setns(place.get(), CLONE_NEWNET), "entering " + space);
  FileDescriptor device(check(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), "tun"));
  ifreq request{};
  fmt::format_to_n(request.ifr_name, IFNAMSIZ - 1, "far{}", end);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  check(::ioctl(device.get(), TUNSETIFF, &request), "TUNSETIFF");
  const std::string name(request.ifr_name);
  const std::string set_up =
      fmt::format("ip addr add 10.78.0.{}/24 dev {} && ip link set {} up", end + 1, name, name);
  check(std::system(set_up.c_str()) == 0 ? 0 : -1, set_up);
  return device;
}

// Until the next packet is due; at most a second.
timespec until_next(const std::array<std::deque<Packet>, 2>& queues) {
  stretto::Duration wait = std::chrono::seconds(1);
  for (const auto& queue : queues) {
    if (!queue.empty()) wait = std::min(wait, queue.front().due - stretto::Clock::now());
  }
  const auto ns = std::max<std::chrono::nanoseconds>(wait, std::chrono::nanoseconds(0)).count();
  return {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
}

void run(char** arguments) {
  const std::array<FileDescriptor, 2> devices{open_device(arguments[1], 0),
                                              open_device(arguments[2], 1)};
  const auto delay = std::chrono::duration_cast<stretto::Duration>(
      std::chrono::duration<double, std::milli>(std::stod(arguments[3])));
  const auto loss_permille = static_cast<std::uint64_t>(std::stoi(arguments[4]));
  std::puts("up");
  std::fflush(stdout);
  stretto::Random random(1);
  std::array<std::deque<Packet>, 2> queues;  // By the end at which packets arrive.
  std::array<char, 65536> buffer;
  while (true) {
    pollfd entries[2] = {{devices[0].get(), POLLIN, 0}, {devices[1].get(), POLLIN, 0}};
    const timespec wait = until_next(queues);
    ::ppoll(entries, 2, &wait, nullptr);
    const stretto::TimePoint now = stretto::Clock::now();
    for (std::size_t end = 0; end < 2; ++end) {
      ssize_t count = 0;
      while ((count = ::read(devices[end].get(), buffer.data(), buffer.size())) > 0) {
        if (random.below(1000) < loss_permille) continue;
        queues[1 - end].push_back({now + delay, {buffer.data(), buffer.data() + count}});
      }
      for (auto& queue = queues[end]; !queue.empty() && queue.front().due <= now;) {
        // What does not go in is lost, as on other cables.
        (void)!::write(devices[end].get(), queue.front().bytes.data(), queue.front().bytes.size());
        queue.pop_front();
      }
    }
  }
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 5) return 2;
  return stretto::testing::run_or_explain([&] { run(arguments); });
}

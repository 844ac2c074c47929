// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// A long and bad cable between two network namespaces:
//   lossy_cable_program NAMESPACE NAMESPACE DELAY_MS LOSS_PERMILLE [CONNECTION_BITS_PER_SECOND]
// gives the first namespace the address 10.78.0.1 and the second 10.78.0.2, prints "up", and passes
// packets on until it is killed. With the last argument each connection has at most that rate in
// either direction, as in clouds that limit it. Kernels have netem and fq for this, but some are
// built without them.

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
#include <cstring>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/clock.h"
#include "stretto/base/file_descriptor.h"
#include "stretto/base/random.h"
#include "stretto/base/status.h"
#include "tests/end_to_end/rank_program.h"

namespace {

using stretto::FileDescriptor;

using Bytes = std::vector<char>;
using Queue = std::multimap<stretto::TimePoint, Bytes>;  // By time of arrival.

// A connection's packets wait at most this long for its rate; more are lost, as by a policer.
constexpr stretto::Duration kLongestWait = std::chrono::milliseconds(50);

// Both ports of a packet of TCP over IPv4, as one number: the addresses are always the cable's
// ends. For other packets, the bytes at that place, or 0.
std::uint32_t connection_of(const Bytes& packet) {
  const std::size_t header_bytes = packet.empty() ? 0 : 4 * (packet[0] & 0xfU);
  std::uint32_t ports = 0;
  if (packet.size() >= header_bytes + sizeof(ports)) {
    std::memcpy(&ports, packet.data() + header_bytes, sizeof(ports));
  }
  return ports;
}

// One direction of the cable.
class Direction {
 public:
  Direction(stretto::Duration delay, std::uint64_t loss_permille, double connection_rate,
            std::uint64_t seed)
      : delay_(delay),
        loss_permille_(loss_permille),
        connection_rate_(connection_rate),
        random_(seed) {}

  void take(Bytes packet, stretto::TimePoint now) {
    if (random_.below(1000) < loss_permille_) return;
    stretto::TimePoint leaves = now;
    if (connection_rate_ > 0) {
      stretto::TimePoint& free = free_[connection_of(packet)];
      free = std::max(free, now);
      if (free - now > kLongestWait) return;  // As a full queue does.
      free += std::chrono::duration_cast<stretto::Duration>(std::chrono::duration<double>(
          8.0 * static_cast<double>(packet.size()) / connection_rate_));
      leaves = free;
    }
    queue_.emplace(leaves + delay_, std::move(packet));
  }

  void deliver(int device, stretto::TimePoint now) {
    for (; !queue_.empty() && queue_.begin()->first <= now; queue_.erase(queue_.begin())) {
      const Bytes& packet = queue_.begin()->second;
      // If the write fails the packet is lost, as on other cables.
      (void)!::write(device, packet.data(), packet.size());
    }
  }

  const Queue& queue() const { return queue_; }

 private:
  const stretto::Duration delay_;
  const std::uint64_t loss_permille_;
  const double connection_rate_;  // Bits per second; 0: no limit.
  stretto::Random random_;
  Queue queue_;
  std::map<std::uint32_t, stretto::TimePoint> free_;  // When a connection's next packet may leave.
};

int check(int result, const std::string& what) {
  if (result < 0) stretto::system_status(what).or_throw();
  return result;
}

// Opens a packet device in a namespace; this process stays in that namespace.
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

// The time until the next packet is due; at most a second.
timespec until_next(const std::array<Direction, 2>& directions) {
  stretto::Duration wait = std::chrono::seconds(1);
  for (const Direction& direction : directions) {
    if (direction.queue().empty()) continue;
    wait = std::min(wait, direction.queue().begin()->first - stretto::Clock::now());
  }
  const auto ns = std::max<std::chrono::nanoseconds>(wait, std::chrono::nanoseconds(0)).count();
  return {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
}

void run(std::span<char*> arguments) {
  const std::array<FileDescriptor, 2> devices{open_device(arguments[1], 0),
                                              open_device(arguments[2], 1)};
  const auto delay = std::chrono::duration_cast<stretto::Duration>(
      std::chrono::duration<double, std::milli>(std::stod(arguments[3])));
  const auto loss_permille = static_cast<std::uint64_t>(std::stoi(arguments[4]));
  const double connection_rate = arguments.size() > 5 ? std::stod(arguments[5]) : 0;
  std::puts("up");
  std::fflush(stdout);
  // Indexed by the end at which packets arrive.
  std::array<Direction, 2> directions{Direction(delay, loss_permille, connection_rate, 1),
                                      Direction(delay, loss_permille, connection_rate, 2)};
  std::array<char, 65536> buffer;
  while (true) {
    pollfd entries[2] = {{devices[0].get(), POLLIN, 0}, {devices[1].get(), POLLIN, 0}};
    const timespec wait = until_next(directions);
    ::ppoll(entries, 2, &wait, nullptr);
    const stretto::TimePoint now = stretto::Clock::now();
    for (std::size_t end = 0; end < 2; ++end) {
      ssize_t count = 0;
      while ((count = ::read(devices[end].get(), buffer.data(), buffer.size())) > 0) {
        directions[1 - end].take({buffer.data(), buffer.data() + count}, now);
      }
      directions[end].deliver(devices[end].get(), now);
    }
  }
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 5 && argument_count != 6) return 2;
  return stretto::testing::run_or_explain([&] {
    run({arguments, static_cast<std::size_t>(argument_count)});
  });
}

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/end_to_end/tool.h"

namespace stretto::testing {

// Network namespaces play hosts and the switch between them: ranks use shared memory inside a host,
// and TCP between two. Needs root and iproute2.
class Hosts {
 public:
  explicit Hosts(int count) {
    made_ = ip("netns add {0}") && ip("-n {0} link add name br0 type bridge") &&
            ip("-n {0} link set br0 up");
    for (int host = 0; made_ && host < count; ++host) {
      names_.push_back(fmt::format("stretto{}h{}", ::getpid(), host));
      made_ = ip("netns add {1}", host) &&
              ip("link add eth netns {1} type veth peer name to{2} netns {0}", host) &&
              ip("-n {0} link set to{2} master br0 up", host) &&
              ip("-n {1} addr add {3}/24 dev eth", host) && ip("-n {1} link set eth up", host) &&
              ip("-n {1} link set lo up", host);
    }
  }
  ~Hosts() {
    for (const std::string& name : names_) shell("ip netns del " + name + " 2>/dev/null");
    shell("ip netns del " + switch_ + " 2>/dev/null");
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  bool made() const { return made_; }
  static std::string address(int host) { return fmt::format("10.77.0.{}", host + 1); }
  // The command that runs a program on a host; the program follows it.
  Arguments on(int host) const { return {"ip", "netns", "exec", name(host)}; }

  // The switch drops all packets from and to a host; the host sees its link up.
  bool silence(int host) { return ip("-n {0} link set to{2} nomaster", host); }
  bool heal(int host) { return ip("-n {0} link set to{2} master br0", host); }
  // The host sees its own link go down.
  bool unplug(int host) { return ip("-n {1} link set eth down", host); }
  // Packets from one host to another are lost, but not those of the other direction.
  bool drop(int from, int to) {
    return shell(
        fmt::format("ip -n {} neigh replace {} lladdr 02:00:00:00:00:99 dev eth nud permanent",
                    name(from), address(to)));
  }

 private:
  static bool shell(const std::string& command) { return std::system(command.c_str()) == 0; }
  const std::string& name(int host) const { return names_[static_cast<std::size_t>(host)]; }
  // In `arguments`, {0} is the switch; {1}, {2}, {3} are the host's name, number and address.
  bool ip(const std::string& arguments, int host = 0) const {
    return shell("ip " +
                 fmt::format(fmt::runtime(arguments), switch_,
                             names_.empty() ? std::string() : name(host), host, address(host)) +
                 " 2>/dev/null");
  }

  std::string switch_ = fmt::format("stretto{}s", ::getpid());
  std::vector<std::string> names_;
  bool made_ = false;
};

}  // namespace stretto::testing

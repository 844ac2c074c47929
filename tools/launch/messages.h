// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/status.h"
#include "tools/launch/host.h"
#include "tools/launch/options.h"

namespace stretto::launch {

// What a launcher and its agent on another host tell each other: lines of JSON. Both are the same
// program of the same user; what cannot be read is an error all the same.

// The first line to the agent.
struct Order {
  LaunchOptions options = {};
  std::string directory = {};
  std::vector<std::string> environment = {};  // "NAME=value"
  // What each line of an event begins with, among other things on the agent's standard error.
  std::string marker = {};
};

std::string format_order(const Order& order);
Result<Order> parse_order(std::string_view line);

// Of a rank of another host, to the agent.
struct Obituary {
  int rank = 0;
  std::string how = {};
};

std::string format_obituary(const Obituary& obituary);
Result<Obituary> parse_obituary(std::string_view line);

// The agent is to start a rank of its host again: see Host::restart.
struct RestartOrder {
  int local_rank = 0;
  int number = 0;
};

std::string format_restart(const RestartOrder& order);
Result<RestartOrder> parse_restart(std::string_view line);

// The pipes do not stand in it.
std::string format_event(const RankEvent& event);
Result<RankEvent> parse_event(std::string_view line);

}  // namespace stretto::launch

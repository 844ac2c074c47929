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

// The messages between a launcher and its agent on another host: lines of JSON. Both run the same
// program for the same user; still, the parsers return an error for a line that they cannot read.

// The first line to the agent.
struct Order {
  LaunchOptions options = {};
  std::string directory = {};
  std::vector<std::string> environment = {};  // "NAME=value"
  // Begins each line with an event, because the agent's standard error also carries other lines.
  std::string marker = {};
};

std::string format_order(const Order& order);
Result<Order> parse_order(std::string_view line);

// Tells the agent how a rank of another host has ended.
struct Obituary {
  int rank = 0;
  std::string how = {};
};

std::string format_obituary(const Obituary& obituary);
Result<Obituary> parse_obituary(std::string_view line);

// Tells the agent to start a rank of its host again: see Host::restart.
struct RestartOrder {
  int local_rank = 0;
  int number = 0;
};

std::string format_restart(const RestartOrder& order);
Result<RestartOrder> parse_restart(std::string_view line);

// The line leaves out `output` and `errors`.
std::string format_event(const RankEvent& event);
Result<RankEvent> parse_event(std::string_view line);

}  // namespace stretto::launch

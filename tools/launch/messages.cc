// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/messages.h"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace stretto::launch {
namespace {

using Json = nlohmann::json;

std::string format(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// What `read` makes of the JSON.
template <typename Value, typename Read>
Result<Value> parse(std::string_view line, Read read) {
  try {
    return read(Json::parse(line));
  } catch (const Json::exception& error) {
    return status_of(StatusCode::invalid_argument, "\"{}\" is no message of a launcher: {}",
                     line.substr(0, 80), error.what());
  }
}

// Unlike get<int>(), no fraction, and nothing beyond 64 bits.
int whole_number(const Json& json) {
  return static_cast<int>(json.get_ref<const Json::number_integer_t&>());
}

}  // namespace

std::string format_order(const Order& order) {
  Json hosts = Json::array();
  for (const HostShare& share : order.options.hosts) hosts.push_back({share.name, share.ranks});
  return format({{"command", order.options.command},
                 {"hosts", hosts},
                 {"host_index", order.options.host_index},
                 {"rendezvous", order.options.rendezvous},
                 {"key", order.options.key.hexadecimal()},
                 {"prefix", order.options.prefix},
                 {"directory", order.directory},
                 {"environment", order.environment},
                 {"marker", order.marker}});
}

Result<Order> parse_order(std::string_view line) {
  return parse<Order>(line, [](const Json& json) -> Result<Order> {
    STRETTO_ASSIGN_OR_RETURN(const auto key,
                             bootstrap::JobKey::parse(json.at("key").get<std::string>()));
    Order order{.directory = json.at("directory"),
                .environment = json.at("environment"),
                .marker = json.at("marker")};
    order.options.command = json.at("command").get<std::vector<std::string>>();
    order.options.hosts.clear();
    for (const Json& share : json.at("hosts")) {
      order.options.hosts.push_back({share.at(0), whole_number(share.at(1))});
    }
    order.options.host_index = whole_number(json.at("host_index"));
    order.options.rendezvous = json.at("rendezvous");
    order.options.key = key;
    order.options.prefix = json.at("prefix");
    const auto hosts = static_cast<int>(order.options.hosts.size());
    if (order.options.host_index < 0 || order.options.host_index >= hosts ||
        order.options.command.empty() || order.options.local_size() < 1) {
      return status_of(StatusCode::invalid_argument, "an order without a program, host or rank");
    }
    return order;
  });
}

std::string format_event(const RankEvent& event) {
  Json json{{"kind", static_cast<int>(event.kind)},
            {"rank", event.local_rank},
            {"pid", event.pid},
            {"number", event.number},
            {"text", event.text}};
  // Clocks of hosts differ, ages do not.
  if (event.note) {
    json["note"] = event.note->text;
    json["note_age"] = seconds(Clock::now() - event.note->written);
  }
  return format(json);
}

Result<RankEvent> parse_event(std::string_view line) {
  return parse<RankEvent>(line, [](const Json& json) -> Result<RankEvent> {
    const int kind = whole_number(json.at("kind"));
    if (kind < 0 || kind > static_cast<int>(RankEvent::Kind::lost)) {
      return status_of(StatusCode::invalid_argument, "an event of an unknown kind, {}", kind);
    }
    RankEvent event{.kind = static_cast<RankEvent::Kind>(kind),
                    .local_rank = whole_number(json.at("rank")),
                    .pid = whole_number(json.at("pid")),
                    .number = whole_number(json.at("number")),
                    .text = json.at("text")};
    if (json.contains("note")) {
      constexpr double kAgeMax = 1e9;
      const std::chrono::duration<double> age(
          std::clamp(json.at("note_age").get<double>(), 0.0, kAgeMax));
      event.note = {.text = json.at("note"),
                    .written = Clock::now() - std::chrono::duration_cast<Duration>(age)};
    }
    return event;
  });
}

}  // namespace stretto::launch

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

// Returns what `read` returns for the JSON in `line`; fails if it is no such message.
template <typename Value, typename Read>
Result<Value> parse(std::string_view line, Read read) {
  try {
    return read(Json::parse(line));
  } catch (const Json::exception& error) {
    return status_of(StatusCode::invalid_argument, "\"{}\" is no message of a launcher: {}",
                     line.substr(0, 80), error.what());
  }
}

// Unlike get<int>(), throws for a fraction and for a number beyond 64 bits.
int whole_number(const Json& json) {
  return static_cast<int>(json.get_ref<const Json::number_integer_t&>());
}

TimePoint time_of_age(const Json& json) {
  constexpr double kAgeMax = 1e9;
  const std::chrono::duration<double> age(std::clamp(json.get<double>(), 0.0, kAgeMax));
  return Clock::now() - std::chrono::duration_cast<Duration>(age);
}

// Arguments and variables are bytes in an unknown encoding, but JSON holds characters: each byte is
// written as the character with its code.
std::string text_of_bytes(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    const auto number = static_cast<unsigned char>(byte);
    if (number >= 0x80) text += static_cast<char>(0xc0 | number >> 6);
    text += static_cast<char>(number < 0x80 ? number : 0x80 | (number & 0x3f));
  }
  return text;
}
// The inverse. Other characters do not occur; their bytes stay as they are.
std::string bytes_of_text(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto first = static_cast<unsigned char>(text[i]);
    const bool is_byte = (first & 0xfc) == 0xc0 && i + 1 < text.size();
    bytes += is_byte ? static_cast<char>(first << 6 | (text[++i] & 0x3f)) : text[i];
  }
  return bytes;
}

Json texts_of(const std::vector<std::string>& list) {
  Json texts = Json::array();
  for (const std::string& bytes : list) texts.push_back(text_of_bytes(bytes));
  return texts;
}
std::vector<std::string> bytes_of(const Json& texts) {
  std::vector<std::string> list;
  for (const Json& text : texts) {
    list.push_back(bytes_of_text(text.get_ref<const std::string&>()));
  }
  return list;
}

}  // namespace

std::string format_order(const Order& order) {
  Json hosts = Json::array();
  for (const HostShare& share : order.options.hosts) hosts.push_back({share.name, share.ranks});
  return format({{"command", texts_of(order.options.command)},
                 {"hosts", hosts},
                 {"host_index", order.options.host_index},
                 {"rendezvous", order.options.rendezvous},
                 {"key", order.options.key.hexadecimal()},
                 {"prefix", order.options.prefix},
                 {"restarts", order.options.restarts},
                 {"directory", text_of_bytes(order.directory)},
                 {"environment", texts_of(order.environment)},
                 {"marker", order.marker}});
}

Result<Order> parse_order(std::string_view line) {
  return parse<Order>(line, [](const Json& json) -> Result<Order> {
    STRETTO_ASSIGN_OR_RETURN(const auto key,
                             bootstrap::JobKey::parse(json.at("key").get<std::string>()));
    Order order{.directory = bytes_of_text(json.at("directory").get_ref<const std::string&>()),
                .environment = bytes_of(json.at("environment")),
                .marker = json.at("marker")};
    order.options.command = bytes_of(json.at("command"));
    order.options.hosts.clear();
    for (const Json& share : json.at("hosts")) {
      order.options.hosts.push_back({share.at(0), whole_number(share.at(1))});
    }
    order.options.host_index = whole_number(json.at("host_index"));
    order.options.rendezvous = json.at("rendezvous");
    order.options.key = key;
    order.options.prefix = json.at("prefix");
    order.options.restarts = whole_number(json.at("restarts"));
    const auto hosts = static_cast<int>(order.options.hosts.size());
    if (order.options.host_index < 0 || order.options.host_index >= hosts ||
        order.options.command.empty() || order.options.local_size() < 1) {
      return status_of(StatusCode::invalid_argument, "an order without a program, host or rank");
    }
    return order;
  });
}

std::string format_obituary(const Obituary& obituary) {
  return format({{"rank", obituary.rank}, {"how", obituary.how}});
}

Result<Obituary> parse_obituary(std::string_view line) {
  return parse<Obituary>(line, [](const Json& json) -> Result<Obituary> {
    return Obituary{.rank = whole_number(json.at("rank")), .how = json.at("how")};
  });
}

std::string format_restart(const RestartOrder& order) {
  return format({{"local_rank", order.local_rank}, {"restart", order.number}});
}

Result<RestartOrder> parse_restart(std::string_view line) {
  return parse<RestartOrder>(line, [](const Json& json) -> Result<RestartOrder> {
    return RestartOrder{.local_rank = whole_number(json.at("local_rank")),
                        .number = whole_number(json.at("restart"))};
  });
}

std::string format_event(const RankEvent& event) {
  // The clocks of hosts differ, so the line has the event's age.
  Json json{{"kind", static_cast<int>(event.kind)},
            {"rank", event.local_rank},
            {"pid", event.pid},
            {"number", event.number},
            {"text", event.text},
            {"obituary", event.obituary},
            {"age", seconds(Clock::now() - event.at)}};
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
                    .text = json.at("text"),
                    .at = time_of_age(json.at("age")),
                    .obituary = json.at("obituary")};
    if (json.contains("note")) {
      event.note = {.text = json.at("note"), .written = time_of_age(json.at("note_age"))};
    }
    return event;
  });
}

}  // namespace stretto::launch

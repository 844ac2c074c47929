// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/rank_card.h"

#include <unistd.h>

#include <array>
#include <fstream>

#include <fmt/format.h>

#include "stretto/base/host_name.h"
#include "stretto/base/parse_number.h"
#include "stretto/base/printable.h"

namespace stretto::bootstrap {
namespace {

constexpr std::string_view kTitle = "stretto card 7";
constexpr std::size_t kFieldBytesMax = 256;

// Empty if the file cannot be read. Two ranks that both lack a field have equal values, and try a
// Unix socket.
std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_target(const char* path) {
  std::array<char, kFieldBytesMax> target{};
  const ssize_t length = ::readlink(path, target.data(), target.size());
  return length > 0 ? std::string(target.data(), static_cast<std::size_t>(length)) : std::string();
}

// Takes "name value\n" off the text.
Result<std::string> take_field(std::string_view& text, std::string_view field) {
  const std::size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  const bool fits = end != std::string_view::npos && line.size() > field.size() &&
                    line.starts_with(field) && line[field.size()] == ' ' &&
                    line.size() <= field.size() + 1 + kFieldBytesMax;
  if (!fits) return status_of(StatusCode::protocol, "a rank's card lacks its field {}", field);
  text.remove_prefix(end + 1);
  return std::string(line.substr(field.size() + 1));
}

// A hexadecimal digit per four processors, the lowest numbers last, without leading zeros.
std::string print(const ProcessorSet& processors) {
  std::string text;
  for (std::size_t end = processors.size(); end > 0; end -= 4) {
    unsigned digit = 0;
    for (std::size_t i = 1; i <= 4; ++i) digit = digit << 1 | (processors[end - i] ? 1u : 0u);
    if (!text.empty() || digit != 0) text += "0123456789abcdef"[digit];
  }
  return text;
}

// For a text that print() would not make, the result is arbitrary.
ProcessorSet parse_processors(std::string_view text) {
  ProcessorSet processors;
  for (const char letter : text) {
    const std::size_t digit = std::string_view("0123456789abcdef").find(letter);
    processors = processors << 4 | ProcessorSet(digit & 0xf);
  }
  return processors;
}

}  // namespace

RankCard local_card() {
  return {.machine = first_line("/proc/sys/kernel/random/boot_id"),
          .network = link_target("/proc/self/ns/net"),
          .pid_namespace = link_target("/proc/self/ns/pid"),
          .node = host_name(),
          .pid = static_cast<int>(::getpid()),
          .processors = affinity()};
}

std::string print(const RankCard& card) {
  return fmt::format(
      "{}\nmachine {}\nnetwork {}\npid_namespace {}\nnode {}\npid {}\nprocessors {}\nlinks {}\n"
      "streams {}\naddress {}\nstore {}\n",
      kTitle, card.machine, card.network, card.pid_namespace, card.node, card.pid,
      print(card.processors), card.links, card.streams, card.address, card.store);
}

Result<RankCard> parse_card(std::string_view whole) {
  std::string_view text = whole;
  if (!text.starts_with(kTitle) || text.size() < kTitle.size() + 1) {
    return status_of(StatusCode::protocol, "a rank's card does not begin with \"{}\"", kTitle);
  }
  text.remove_prefix(kTitle.size() + 1);
  RankCard card;
  std::string pid;
  std::string processors;
  std::string streams;
  for (const auto& [field, value] :
       {std::pair("machine", &card.machine), std::pair("network", &card.network),
        std::pair("pid_namespace", &card.pid_namespace), std::pair("node", &card.node),
        std::pair("pid", &pid), std::pair("processors", &processors),
        std::pair("links", &card.links), std::pair("streams", &streams),
        std::pair("address", &card.address), std::pair("store", &card.store)}) {
    STRETTO_ASSIGN_OR_RETURN(std::string taken, take_field(text, field));
    *value = std::move(taken);
  }
  card.pid = parse_number<decltype(card.pid)>(pid).value_or(0);
  card.processors = parse_processors(processors);
  card.streams = parse_number<decltype(card.streams)>(streams).value_or(0);
  // Comparing with the printed card rejects other spellings of the same card, such as leading
  // zeros.
  if (card.pid <= 0 || card.streams < 1 || print(card) != whole) {
    return status_of(StatusCode::protocol, "a rank's card is not well formed");
  }
  for (std::string* const field : {&card.machine, &card.network, &card.pid_namespace, &card.node,
                                   &card.links, &card.address, &card.store}) {
    *field = printable(std::move(*field));
  }
  return card;
}

}  // namespace stretto::bootstrap

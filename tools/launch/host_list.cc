// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/host_list.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "stretto/base/parse_number.h"
#include "stretto/bootstrap/own_address.h"

namespace stretto::launch {
namespace {

constexpr int kMostRanks = 65536;

// Some batch systems write a line for each slot of a host, so lines for the same host in a row add
// up.
Status add_share(HostShare share, std::vector<HostShare>& hosts) {
  const auto same = std::ranges::find(hosts, share.name, &HostShare::name);
  if (same == hosts.end()) {
    hosts.push_back(std::move(share));
    return {};
  }
  if (same + 1 != hosts.end()) {
    return status_of(StatusCode::invalid_argument,
                     "{} is named again after other hosts, but the ranks of a host follow each "
                     "other: name it in one place",
                     share.name);
  }
  same->ranks += share.ranks;
  if (same->ranks <= kMostRanks) return {};
  return status_of(StatusCode::invalid_argument, "{} has more than {} ranks", share.name,
                   kMostRanks);
}

// Adds the host of a line such as "node0 slots=4"; adds nothing for a line without a host.
Status add_host(const std::string& line, int ranks, std::vector<HostShare>& hosts) {
  std::istringstream words(line.substr(0, line.find('#')));
  HostShare share{.name = {}, .ranks = ranks};
  if (!(words >> share.name)) return {};
  bool is_first = true;
  for (std::string word; words >> word;) {
    constexpr std::string_view kSlots = "slots=";
    const bool known = std::exchange(is_first, false) && word.starts_with(kSlots);
    share.ranks = known ? parse_number<int>(word.substr(kSlots.size())).value_or(0) : 0;
    if (share.ranks < 1 || share.ranks > kMostRanks) {
      return status_of(StatusCode::invalid_argument,
                       "\"{}\" of host {} is not understood: slots=N says how many ranks run there",
                       word, share.name);
    }
  }
  // A remote shell would take "-name" for an option; a name with "/" was meant as a file.
  if (share.name.starts_with('-') || share.name.find('/') != std::string::npos) {
    return status_of(StatusCode::invalid_argument, "\"{}\" is no host{}", share.name,
                     share.name.starts_with('-') ? "" : ", and no such file is there");
  }
  return add_share(std::move(share), hosts);
}

}  // namespace

Result<std::vector<HostShare>> read_hosts(const std::string& text, int ranks) {
  std::vector<HostShare> hosts;
  std::error_code error;
  std::string lines = text;
  const std::filesystem::file_status found = std::filesystem::status(text, error);
  // This may be a pipe, such as a shell's <(command). A directory may have the same name as a host.
  if (std::filesystem::exists(found) && !std::filesystem::is_directory(found)) {
    std::ifstream file(text);
    if (!file) return system_status("--hosts " + text);
    lines.assign(std::istreambuf_iterator<char>(file), {});
  } else {
    std::replace(lines.begin(), lines.end(), ',', '\n');
  }
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    STRETTO_RETURN_IF_ERROR(add_host(line, ranks, hosts));
  }
  if (!hosts.empty()) return hosts;
  return status_of(StatusCode::invalid_argument, "--hosts {} names no host", text);
}

Status check_meeting_place(const LaunchOptions& options) {
  if (options.hosts.size() == 1 || !options.rendezvous.empty()) return {};
  const std::string& first = options.hosts.front().name;  // Or "user@name".
  const std::string name = first.substr(first.find('@') + 1);
  if (name != "localhost" && !bootstrap::is_loopback(name)) return {};
  return status_of(StatusCode::invalid_argument,
                   "the ranks of all hosts would meet at the first, {}, by which every host means "
                   "itself: give it the name by which the others reach it, or --rendezvous "
                   "HOST:PORT",
                   name);
}

}  // namespace stretto::launch

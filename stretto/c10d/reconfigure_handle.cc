// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/reconfigure_handle.h"

#include <algorithm>
#include <random>
#include <string_view>
#include <unordered_set>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/base/fnv1a.h"
#include "stretto/base/printable.h"
#include "stretto/bootstrap/host_port.h"
#include "stretto/c10d/errors.h"
#include "stretto/c10d/stores.h"

namespace stretto::c10d_backend {
namespace {

using Handles = std::vector<ReconfigureHandle>;

constexpr std::string_view kBegin = "stretto:";
constexpr std::size_t kDigits = 16;
constexpr std::size_t kServerBegin = kBegin.size() + kDigits + 1;

std::string server_in(const ReconfigureHandle& handle) { return handle.substr(kServerBegin); }

// Checks a handle, which comes from another process.
bool is_well_formed(const ReconfigureHandle& handle) {
  constexpr std::size_t kMostBytes = 512;
  if (handle.size() < kServerBegin || handle.size() > kMostBytes) return false;
  const std::string_view digits = std::string_view(handle).substr(kBegin.size(), kDigits);
  return handle.starts_with(kBegin) && handle[kServerBegin - 1] == ':' &&
         digits.find_first_not_of("0123456789abcdef") == std::string_view::npos &&
         (handle.size() == kServerBegin || bootstrap::parse_host_port(server_in(handle)).ok());
}

// The handles by rank. A list is in this order; a set is sorted by text.
Handles in_order(const ReconfigureOptions& options) {
  if (const auto* const list = std::get_if<Handles>(&options.handles)) return *list;
  const auto& set = std::get<std::unordered_set<ReconfigureHandle>>(options.handles);
  Handles handles(set.begin(), set.end());
  std::ranges::sort(handles);
  return handles;
}

// The TCPStore in which all members meet, the same for any order of handles; empty if none has one.
std::string common_server(Handles handles) {
  std::ranges::sort(handles);
  for (const ReconfigureHandle& handle : handles) {
    if (std::string server = server_in(handle); !server.empty()) return server;
  }
  return {};
}

}  // namespace

ReconfigureHandle new_handle(const c10::intrusive_ptr<::c10d::Store>& store) {
  std::random_device random;
  return fmt::format("{}{:08x}{:08x}:{}", kBegin, random(), random(), tcp_server_of(store));
}

MeetingPlace meeting_place(const ReconfigureHandle& own, const ReconfigureOptions& options) {
  const Handles handles = in_order(options);
  std::unordered_set<ReconfigureHandle> seen;
  for (const ReconfigureHandle& handle : handles) {
    const std::string shown = printable(handle.substr(0, 80));
    if (!is_well_formed(handle)) {
      refuse(
          "reconfigure: \"{}\" is no handle of a member: pass what get_reconfigure_handle() has "
          "returned on each of them, all of which have the backend stretto",
          shown);
    }
    if (!seen.insert(handle).second) {
      refuse("reconfigure: the handle {} is listed twice: list each member once", shown);
    }
  }
  const auto found = std::ranges::find(handles, own);
  if (found == handles.end()) {
    refuse(
        "reconfigure: the handle of this rank, {}, is missing: only those who are listed take part",
        own);
  }
  const std::uint64_t hash = fnv1a(fmt::format("{}", fmt::join(handles, "\n")));
  const std::string server = common_server(handles);
  return {.rank = static_cast<int>(found - handles.begin()),
          .size = static_cast<int>(handles.size()),
          .prefix = fmt::format("stretto/reconfigured/{}/{:016x}/", options.uuid, hash),
          .tcp_server = server == server_in(own) ? std::string() : server};
}

}  // namespace stretto::c10d_backend

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/rank_environment.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace stretto::launch {

std::vector<std::string> rank_environment(const LaunchOptions& options,
                                          const RankSettings& settings,
                                          const std::vector<std::string>& inherited) {
  std::map<std::string, std::string> variables;
  for (const std::string& entry : inherited) {
    const std::size_t equals = entry.find('=');
    if (equals != std::string::npos) {
      variables[entry.substr(0, equals)] = entry.substr(equals + 1);
    }
  }
  for (const char* other : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    variables.erase(other);
  }
  variables["STRETTO_RANK"] = std::to_string(options.rank_of(settings.local_rank));
  variables["STRETTO_SIZE"] = std::to_string(options.size());
  variables["STRETTO_LOCAL_RANK"] = std::to_string(settings.local_rank);
  variables["STRETTO_LOCAL_SIZE"] = std::to_string(options.local_size());
  variables["STRETTO_RENDEZVOUS"] = settings.rendezvous;
  variables["STRETTO_JOB_KEY"] = options.key.hexadecimal();
  variables["STRETTO_STATUS_FD"] = std::to_string(settings.status_fd);
  // As many threads as cores in each rank would make the ranks fight for the cores.
  variables.try_emplace("OMP_NUM_THREADS",
                        std::to_string(std::max(1, settings.usable_cores / options.local_size())));
  // Output goes through a pipe; what Python holds back is lost when the rank is killed.
  variables.try_emplace("PYTHONUNBUFFERED", "1");
  std::vector<std::string> environment;
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  return environment;
}

std::vector<std::string> inherited_environment() {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  return variables;
}

bool is_of_this_host(const std::string& variable) {
  constexpr std::string_view kBeginnings[] = {"HOME=",   "HOSTNAME=", "LOGNAME=", "USER=", "SHELL=",
                                              "TMPDIR=", "DISPLAY=",  "XDG_",     "SSH_",  "DBUS_"};
  return std::any_of(std::begin(kBeginnings), std::end(kBeginnings),
                     [&](std::string_view beginning) { return variable.starts_with(beginning); });
}

}  // namespace stretto::launch

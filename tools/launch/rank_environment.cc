// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/launch/rank_environment.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "stretto/bootstrap/host_port.h"

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
  // These say where the ranks of another launcher meet.
  if (variables.contains("TORCHELASTIC_RUN_ID") || variables.contains("STRETTO_RANK")) {
    variables.erase("MASTER_ADDR");
    variables.erase("MASTER_PORT");
  }
  for (const char* of_torchrun : {"GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE",
                                  "ROLE_NAME", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                  "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE"}) {
    variables.erase(of_torchrun);
  }
  const auto set = [&](const char* ours, const char* of_pytorch, int number) {
    variables[ours] = variables[of_pytorch] = std::to_string(number);
  };
  set("STRETTO_RANK", "RANK", options.rank_of(settings.local_rank));
  set("STRETTO_SIZE", "WORLD_SIZE", options.size());
  set("STRETTO_LOCAL_RANK", "LOCAL_RANK", settings.local_rank);
  set("STRETTO_LOCAL_SIZE", "LOCAL_WORLD_SIZE", options.local_size());
  variables["STRETTO_RENDEZVOUS"] = settings.rendezvous;
  if (const auto master = bootstrap::parse_host_port(settings.master); master.ok()) {
    variables.try_emplace("MASTER_ADDR", master.value().host);
    variables.try_emplace("MASTER_PORT", std::to_string(master.value().port));
  }
  variables["STRETTO_JOB_KEY"] = options.key.hexadecimal();
  variables["STRETTO_STATUS_FD"] = std::to_string(settings.status_fd);
  variables.erase("STRETTO_RESTART_COUNT");
  if (settings.restart > 0) variables["STRETTO_RESTART_COUNT"] = std::to_string(settings.restart);
  // With a thread per core in each rank, the ranks would fight for the cores.
  variables.try_emplace("OMP_NUM_THREADS",
                        std::to_string(std::max(1, settings.usable_cores / options.local_size())));
  // Output goes through a pipe; text that Python buffers is lost when the rank is killed.
  variables.try_emplace("PYTHONUNBUFFERED", "1");
  std::vector<std::string> environment;
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  return environment;
}

std::string master_place(const LaunchOptions& options, const bootstrap::HostPort& rendezvous,
                         int free_port) {
  constexpr int kLastPort = 65535;
  if (!options.starter.empty()) return {};  // The starter numbers its ranks.
  const int port = meets_at_any_port(options) ? free_port : rendezvous.port + 1;
  return port < 1 || port > kLastPort ? std::string()
                                      : bootstrap::format_host_port(rendezvous.host, port);
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

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/slurm.h"

#include "stretto/job/sourced.h"

namespace stretto::job {
namespace {

// Below the ports that systems assign by themselves, above those of common services.
constexpr int kFirstPort = 15000;
constexpr int kPorts = 15000;

Status no_list(std::string_view list) {
  return status_of(StatusCode::invalid_argument, "\"{}\" is no list of hosts of Slurm", list);
}

}  // namespace

bool in_slurm_step(const Environment& environment) {
  return environment.get("SLURM_STEP_ID") || environment.get("SLURM_STEP_NODELIST");
}

Result<std::string> first_slurm_host(std::string_view list) {
  std::string host;
  std::string_view rest = list;
  while (!rest.empty() && rest.front() != ',') {
    if (rest.front() != '[') {
      host += rest.front();
      rest.remove_prefix(1);
      continue;
    }
    const std::size_t close = rest.find(']');
    const std::size_t number_end = rest.find_first_of(",-]");
    if (close == std::string_view::npos || number_end <= 1) return no_list(list);
    host += rest.substr(1, number_end - 1);
    rest.remove_prefix(close + 1);
  }
  if (host.empty() || host.find_first_of("[] ") != std::string::npos) return no_list(list);
  return host;
}

Result<bootstrap::HostPort> slurm_meeting_place(const Environment& environment) {
  MaybeSourced<std::string> list = read_text(environment, "SLURM_STEP_NODELIST");
  if (!list) list = read_text(environment, "SLURM_JOB_NODELIST");
  // The host where srun runs, which is right if it is the only one.
  if (!list) list = read_text(environment, "SLURM_LAUNCH_NODE_IPADDR");
  if (!list) {
    return status_of(StatusCode::invalid_argument,
                     "SLURM_STEP_NODELIST is not set: say where the ranks meet with "
                     "STRETTO_RENDEZVOUS=tcp://HOST:PORT");
  }
  const Result<std::string> host = first_slurm_host(list->value);
  if (!host.ok()) return host.status().with_context(list->source);
  STRETTO_ASSIGN_OR_RETURN(const auto job, read_number(environment, "SLURM_JOB_ID"));
  STRETTO_ASSIGN_OR_RETURN(const auto step, read_number(environment, "SLURM_STEP_ID"));
  // Steps of one job may run at the same time on one host; so may jobs with neighbouring numbers.
  const auto number = static_cast<unsigned>(job ? job->value : 0) +
                      1009u * static_cast<unsigned>(step ? step->value : 0);
  return bootstrap::HostPort{host.value(), kFirstPort + static_cast<int>(number % kPorts)};
}

}  // namespace stretto::job

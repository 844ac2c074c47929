// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <dlfcn.h>

#include <algorithm>
#include <numeric>
#include <sstream>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/base/log.h"
#include "stretto/cuda/load_kernels.h"
#include "stretto/cuda_driver/driver.h"
#include "stretto/job/settings.h"
#include "stretto/nccl/load.h"
#include "stretto/transport/packets/plane.h"
#include "tools/doctor/check.h"

namespace stretto::tools::doctor {
namespace {

// Variables that ranks and launchers do not read: `python -m stretto` and ./dev do.
constexpr std::string_view kOfOthers[] = {
    "STRETTO_PROGRAM", "STRETTO_TORCH", "STRETTO_PIP_ARGS",     "STRETTO_PACKAGES",
    "STRETTO_JOBS",    "STRETTO_SEED",  "STRETTO_TORCH_PYTHON", "STRETTO_NVCC"};

// Returns the edit distance between two names.
std::size_t distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (const char letter : from) {
    std::size_t diagonal = row.front()++;
    for (std::size_t i = 0; i < to.size(); ++i) {
      const std::size_t replaced = diagonal + (letter == to[i] ? 0 : 1);
      diagonal = row[i + 1];
      row[i + 1] = std::min({replaced, row[i] + 1, diagonal + 1});
    }
  }
  return row.back();
}

Check check_names(const std::vector<std::string>& set) {
  const auto known = job::variables();
  std::vector<std::string> unknown;
  for (const std::string& entry : set) {
    const std::string name = entry.substr(0, entry.find('='));
    if (!name.starts_with("STRETTO_") || std::ranges::count(kOfOthers, name) > 0 ||
        std::ranges::count(known, name) > 0) {
      continue;
    }
    const auto nearest = std::ranges::min_element(
        known, {}, [&](std::string_view other) { return distance(name, other); });
    constexpr std::size_t kSlip = 3;
    unknown.push_back(distance(name, *nearest) <= kSlip ? fmt::format("{} (or {}?)", name, *nearest)
                                                        : name);
  }
  if (unknown.empty())
    return {"names", State::ok, "stretto knows all STRETTO_ variables that are set"};
  return warning("names", fmt::format("nothing reads {}", fmt::join(unknown, ", ")),
                 "correct the name, or unset it; docs/environment.md lists all variables");
}

// Returns the values that are set, in one line, without defaults and what job_of() has added.
std::string set_values(const job::Sources& sources) {
  std::istringstream lines(sources.text());
  std::vector<std::string> set;
  for (std::string line; std::getline(lines, line);) {
    const bool is_said =
        !line.starts_with("by default: ") && line.find(" from option ") == std::string::npos;
    if (is_said) set.push_back(line);
  }
  return set.empty() ? "none is set: a job of one rank" : fmt::format("{}", fmt::join(set, "; "));
}

Check check_values(const Environment& environment) {
  const auto failed = [](const Status& status) {
    return problem("values", std::string(status.message()), "ranks would end with this sentence");
  };
  const Result<job::Job> job = job_of(environment);
  if (!job.ok()) return failed(job.status());
  job::Sources sources = job.value().sources;
  const auto settings = read_settings({}, environment, sources);
  if (!settings.ok()) return failed(settings.status());
  if (const std::string mistake = mistake_of_log_level(environment); !mistake.empty()) {
    return warning("values", mistake, "ranks would warn of it, and log from warnings on");
  }
  if (!job.value().foreign_network.empty()) {
    return warning(
        "values",
        fmt::format("{}; but {} is not read", set_values(sources), job.value().foreign_network),
        "on several hosts, set STRETTO_NETWORK to the interface or subnet between them");
  }
  return {"values", State::ok, set_values(sources)};
}

// Returns the file that a function was loaded from.
template <class Function>
std::string file_of(Function* function) {
  Dl_info info{};
  const int found = ::dladdr(reinterpret_cast<const void*>(function), &info);
  return found != 0 && info.dli_fname != nullptr ? info.dli_fname : "an unknown file";
}

// A missing library is a problem only if the job needs it.
Check check_library(const std::string& name, const Result<std::string>& found, bool is_wanted) {
  if (found.ok()) return {name, State::ok, found.value()};
  const std::string seen(found.status().message());
  if (!is_wanted) return {name, State::ok, "not usable: " + seen};
  return problem(name, seen, "the job wants it: install it, or change STRETTO_BACKEND, _TRANSPORT");
}

Result<std::string> find_nccl(const Environment& environment) {
  STRETTO_ASSIGN_OR_RETURN(const auto nccl, nccl::load_nccl(nccl::nccl_files(environment)));
  return fmt::format("{} from {}", nccl->name, file_of(nccl->call.get_version));
}

Result<std::string> find_devices(const Environment& environment) {
  STRETTO_ASSIGN_OR_RETURN(
      const int devices, cuda::Driver::count(environment.get("STRETTO_CUDA_DRIVER").value_or("")));
  if (devices == 0) return status_of(StatusCode::invalid_argument, "this process sees none");
  return fmt::format("{} of them", devices);
}

Result<std::string> find_kernels(const Environment& environment) {
  STRETTO_ASSIGN_OR_RETURN(const cuda::Kernels kernels, cuda::load_kernels(environment));
  return file_of(kernels.reduce);
}

Result<std::string> find_plugin(const std::string& name, const std::string& path) {
  STRETTO_ASSIGN_OR_RETURN(const auto plugin, transport::packets::load_plugin(name, path));
  return plugin.make_engine != nullptr ? file_of(plugin.make_engine) : file_of(plugin.make_library);
}

}  // namespace

Result<job::Job> job_of(const Environment& environment) {
  STRETTO_ASSIGN_OR_RETURN(const auto own, job::resolve_rank_and_size({}, environment));
  JoinOptions options;
  if (own.empty() && environment.get("STRETTO_RENDEZVOUS")) options = {.rank = 0, .size = 2};
  STRETTO_ASSIGN_OR_RETURN(job::Job job, job::resolve_job(options, environment));
  STRETTO_RETURN_IF_ERROR(job.mistake);
  return job;
}

Checks check_variables(const Environment& environment, const std::vector<std::string>& set) {
  return {check_names(set), check_values(environment)};
}

Checks check_libraries(const Environment& environment) {
  const Result<job::Job> job = job_of(environment);
  const std::string backend = job.ok() ? job.value().backend : "";
  const std::string engine = job.ok() ? job.value().engine : "";
  const bool wants_device = backend == "nccl" || backend == "cuda";
  Checks checks{check_library("NCCL", find_nccl(environment), backend == "nccl"),
                check_library("GPUs", find_devices(environment), wants_device),
                check_library("kernels for GPUs", find_kernels(environment), backend == "cuda")};
  for (const std::string name : {"mpi", "ucx"}) {
    const bool is_wanted = backend == name || engine == name;
    const std::string file = job.ok() ? job::plugin_file(job.value(), name) : "";
    checks.push_back(check_library("plug-in " + name, find_plugin(name, file), is_wanted));
  }
  return checks;
}

}  // namespace stretto::tools::doctor

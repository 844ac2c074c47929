// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "stretto/base/environment.h"
#include "tools/commands.h"
#include "tools/doctor/check.h"
#include "tools/launch/rank_environment.h"

namespace stretto::tools {
namespace {

using doctor::Check;
using doctor::Checks;
using doctor::State;

constexpr const char* kDescription =
    "Looks for what is wrong with this host, its network and the job that its environment "
    "describes,\n"
    "before it starts: stretto doctor [OPTIONS]\n";
constexpr const char* kExamples = R"(
Prints a line for each check: ok, warning or problem, what was seen, and what to do about it. A
warning costs speed, or matters for several hosts only. Ends with 0 if there is no problem, and with
1 if there is one. Nothing is changed; GPUs are counted, but not used.

Examples:
  This host, with the variables of this shell:
    stretto doctor
  What a rank finds, started as the job is:
    srun -N 2 --ntasks-per-node 1 stretto doctor
  Why a rank never comes, on its host (the address is in what the other ranks print):
    stretto doctor --to 10.0.4.7:29600
  For a script:
    stretto doctor --json | jq '.checks[] | select(.state != "ok")'
)";

std::string_view name(State state) {
  switch (state) {
    case State::ok:
      return "ok";
    case State::warning:
      return "warning";
    case State::problem:
      return "problem";
  }
  return "unknown";
}

void append(Checks& checks, Checks&& more) { std::ranges::move(more, std::back_inserter(checks)); }

Checks check_all() {
  const Environment& environment = process_environment();
  Checks checks = doctor::check_host(environment);
  append(checks, doctor::check_network(environment));
  append(checks, doctor::check_variables(environment, launch::inherited_environment()));
  append(checks, doctor::check_libraries(environment));
  return checks;
}

void print(const Checks& checks) {
  for (const Check& check : checks) {
    fmt::print("{:<8} {:<18} {}{}{}\n", name(check.state), check.name, check.seen,
               check.advice.empty() ? "" : "; to do: ", check.advice);
  }
}

void print_json(const Checks& checks, std::ptrdiff_t problems) {
  nlohmann::json list = nlohmann::json::array();
  for (const Check& check : checks) {
    list.push_back({{"name", check.name},
                    {"state", name(check.state)},
                    {"seen", check.seen},
                    {"advice", check.advice}});
  }
  const nlohmann::json object{{"checks", list}, {"problems", problems}};
  // Texts of the system need not be UTF-8.
  fmt::print("{}\n", object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

int doctor_command(const std::vector<std::string>& arguments) {
  std::string to;
  bool json = false;
  CLI::App app(kDescription, "stretto doctor");
  app.footer(kExamples);
  app.add_option("--to", to,
                 "HOST:PORT: instead, whether this host reaches that place, and who answers there");
  app.add_flag("--json", json, "Print one JSON object instead of text");
  if (const auto status = parse(app, "doctor", arguments)) return *status;
  Checks checks;
  if (app.count("--to") == 0) {
    checks = check_all();
  } else {
    const auto place = bootstrap::parse_host_port(to);
    if (!place.ok())
      return usage_error("doctor", fmt::format("--to: {}", place.status().message()));
    checks = doctor::check_way_to(place.value(), process_environment());
  }
  const auto problems = std::ranges::count(checks, State::problem, &Check::state);
  if (json) {
    print_json(checks, problems);
  } else {
    print(checks);
  }
  return problems == 0 ? 0 : 1;
}

}  // namespace stretto::tools

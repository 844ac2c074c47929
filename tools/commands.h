// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Validator;
}  // namespace CLI

// The commands of the `stretto` program. `arguments` is what follows the command's name. They
// return the exit status: 0 for success and --help, 2 for a command line that they do not
// understand.
namespace stretto::tools {

// Says on stderr what `stretto COMMAND` does not understand; returns the exit status for that.
int usage_error(std::string_view command, std::string_view sentence);

// Has `app` read the arguments of a command. Returns the exit status if there is nothing left to
// do: help was printed, or a usage error, with the hint if arguments were left over.
std::optional<int> parse(CLI::App& app, std::string_view command,
                         std::vector<std::string> arguments, std::string_view hint_for_extras = {});

// For options that take a number. Unlike CLI::Range it does not let "nan" pass.
CLI::Validator number_within(double low, double high, const std::string& unit);

// For transform() of options that take a whole number: decimal, also where zeros come first, as in
// the number of a host's name. CLI11 alone takes "010" for 8.
CLI::Validator whole_number(std::int64_t low, std::int64_t high);

// `stretto run`: otherwise returns launch()'s status.
int run_command(const std::vector<std::string>& arguments);

// `stretto bench`: measures collectives, or explains how they run (--explain). Starts its own ranks
// unless it is a rank itself. Returns 1 for a wrong result, otherwise the job's status.
int bench_command(const std::vector<std::string>& arguments);

// `stretto plan`: prints, proves and prices the schedule of a collective. Returns 1 if the proof
// fails.
int plan_command(const std::vector<std::string>& arguments);

// `stretto top`: shows the ranks that run on this host, and for whom they wait, until the last has
// ended. Returns 1 if there is none.
int top_command(const std::vector<std::string>& arguments);

// `stretto doctor`: looks for what is wrong with this host, its network and a job's settings, or
// with the way to another host. Returns 1 if there is a problem.
int doctor_command(const std::vector<std::string>& arguments);

}  // namespace stretto::tools

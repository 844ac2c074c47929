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

// The commands of the `stretto` program. `arguments` are the words behind the command's name. Each
// command returns an exit status: 0 for success and --help, 2 for a command line that it does not
// understand.
namespace stretto::tools {

// Prints `sentence`, which says what is wrong with the command line of `stretto COMMAND`, to
// stderr. Returns the exit status for that: 2.
int usage_error(std::string_view command, std::string_view sentence);

// Lets `app` parse the arguments of a command. Returns the exit status if nothing is left to do:
// `app` has printed help, or a usage error. `hint_for_extras` is appended to the error about
// arguments that were left over.
std::optional<int> parse(CLI::App& app, std::string_view command,
                         std::vector<std::string> arguments, std::string_view hint_for_extras = {});

// Checks that an option is a number from `low` to `high`. Unlike CLI::Range it refuses "nan".
CLI::Validator number_within(double low, double high, const std::string& unit);

// For transform() of options that take a whole number from `low` to `high`. The number is decimal
// even with leading zeros, as in the number in a host's name; CLI11 alone takes "010" for 8.
CLI::Validator whole_number(std::int64_t low, std::int64_t high);

// `stretto run`: starts the ranks of a job. Returns launch()'s status if the command line is right.
int run_command(const std::vector<std::string>& arguments);

// `stretto bench`: measures collectives, or explains how they run (--explain). Starts its own ranks
// unless this process is a rank already. Returns 1 for a wrong result, otherwise the job's status.
int bench_command(const std::vector<std::string>& arguments);

// `stretto plan`: prints, proves and prices the schedule of a collective. Returns 1 if the proof
// fails.
int plan_command(const std::vector<std::string>& arguments);

// `stretto top`: shows the ranks that run on this host, and for which ranks they wait, until the
// last one has ended. Returns 1 if there is none.
int top_command(const std::vector<std::string>& arguments);

// `stretto doctor`: looks for problems of this host, its network and a job's settings, or of the
// route to another host. Returns 1 if it finds one.
int doctor_command(const std::vector<std::string>& arguments);

}  // namespace stretto::tools

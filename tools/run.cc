// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tools/commands.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include "stretto/base/cores.h"
#include "stretto/base/environment.h"
#include "stretto/base/log.h"
#include "stretto/base/parse_number.h"
#include "stretto/bootstrap/socket.h"
#include "stretto/job/sourced.h"
#include "tools/launch/host_list.h"
#include "tools/launch/launcher.h"
#include "tools/launch/rank_environment.h"

namespace stretto::tools {
namespace {

constexpr const char* kKeyVariable = "STRETTO_JOB_KEY";

// These stand behind the user's options, because ssh takes the first value of each. They detect a
// dead connection in 15 seconds, and forbid a shared one, which would outlive its launcher.
constexpr std::string_view kSshOptions =
    "-T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ControlPath=none";

constexpr const char* kDescription =
    "Starts the ranks of a job, on this host or by ssh on others, and looks after them:\n"
    "stretto run -n RANKS [OPTIONS] -- PROGRAM [ARGUMENTS]\n";

constexpr const char* kExamples = R"(
Each rank finds STRETTO_RANK, STRETTO_SIZE, STRETTO_LOCAL_RANK, STRETTO_LOCAL_SIZE,
STRETTO_RENDEZVOUS and STRETTO_JOB_KEY in its environment; stretto::join() reads them. Programs of
PyTorch find RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE. MASTER_ADDR and MASTER_PORT,
OMP_NUM_THREADS (the rank's share of the cores) and PYTHONUNBUFFERED=1 are set where they are not
set yet. (With --transport mpi, mpirun's numbers stand for all of these.) The standard input of
ranks is /dev/null, so a debugger that reads commands from it ends at once.

When a rank fails, the others are ended, and the exit status is that of the rank that failed first.
With --restarts the failed rank is started again instead, with the same variables and
STRETTO_RESTART_COUNT (1 for the first restart of the job), and the others go on: for programs whose
ranks meet again by stretto::ElasticJob. The exit status is then that of the ranks' last processes.
SIGINT, SIGTERM and SIGHUP are passed on and end the job, a second one at once. Nothing that the
ranks have started is left then.

Examples:
  Four ranks on this host:
    stretto run -n 4 -- ./train --epochs 3
  A program of PyTorch, which calls torch.distributed.init_process_group("stretto"):
    stretto run -n 4 -- python3 train.py
  Four ranks on each of the hosts that a file names, one a line, by ssh:
    stretto run -n 4 --hosts ./hosts -- ./train
  Eight ranks on two hosts, one command on each:
    export STRETTO_JOB_KEY=$(stretto run --print-job-key)            # once; the same on both
    stretto run -n 4 --hosts node0,node1 --host-index 0 -- ./train   # on node0
    stretto run -n 4 --hosts node0,node1 --host-index 1 -- ./train   # on node1
)";

// The command line as parsed, with durations in seconds.
struct CommandLine {
  launch::LaunchOptions launch;
  int ranks = 1;
  std::string hosts;
  std::string transport;
  std::string encryption;
  std::string remote_shell = "ssh";
  double host_wait_seconds = 0;
  double time_limit_seconds = 0;
  double settle_seconds = seconds(launch::LaunchOptions().settle_time);
  double grace_seconds = seconds(launch::LaunchOptions().grace_time);
  bool print_job_key = false;
  bool agent = false;
};

// Adds the options about when and how ranks, and with them the job, end.
void describe_ends(CLI::App& app, CommandLine& line, const CLI::Validator& duration) {
  app.add_option("--timeout", line.time_limit_seconds,
                 "End the job after so many seconds, with exit status 124 [0: no limit]")
      ->check(duration);
  app.add_option("--restarts", line.launch.restarts,
                 "How often a rank that has failed is started again, all ranks together (with "
                 "--host-index: those of this launcher), before a failure ends the job")
      ->transform(whole_number(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--settle", line.settle_seconds,
                 "Seconds the other ranks have, after the first failure, to end with an error of "
                 "their own; for a job that shrinks: to do the rest of its work")
      ->check(duration)
      ->capture_default_str();
  app.add_option("--grace", line.grace_seconds,
                 "Seconds that ranks have which have been told to end: from SIGTERM, or from the "
                 "SIGINT, SIGTERM or SIGHUP that this launcher was sent, to SIGKILL")
      ->check(duration)
      ->capture_default_str();
}

void describe(CLI::App& app, CommandLine& line) {
  const CLI::Validator duration = number_within(0, 1e9, "seconds");
  app.footer(kExamples);
  app.add_option("-n,--ranks", line.ranks, "Ranks to start on this host, or on each host")
      ->transform(whole_number(1, 65536))
      ->capture_default_str();
  app.add_option("--hosts", line.hosts,
                 "The hosts of the job, in order: a file with one a line (\"node0\", or \"node0 "
                 "slots=4\" for so many ranks; several lines in a row for one host add up), or "
                 "names separated by commas. Starts the ranks on all of them, by ssh");
  app.add_option("--host-index", line.launch.host_index,
                 "Which of the hosts this one is, from 0: starts only the ranks of this one, here; "
                 "run one launcher on each")
      ->transform(whole_number(0, 65535))
      ->needs("--hosts");
  app.add_option("--ssh", line.remote_shell,
                 "What runs a command on another host: words to which its name and the command are "
                 "added; an ssh with options only also gets these, unless the words set them, or "
                 "name a file of settings by -F: " +
                     std::string(kSshOptions))
      ->capture_default_str();
  app.add_option("--wait-for-hosts", line.host_wait_seconds,
                 "Seconds for which a host that cannot be found or reached is tried again")
      ->check(duration)
      ->capture_default_str();
  app.add_option("--transport", line.transport,
                 "What moves bytes: sets STRETTO_TRANSPORT for the ranks; auto, shm, tcp, ucx, or "
                 "mpi, for which the mpirun that PATH leads to starts the ranks")
      ->check(CLI::IsMember({"auto", "shm", "tcp", "ucx", "mpi"}));
  app.add_option("--encryption", line.encryption,
                 "Of what goes between hosts: sets STRETTO_ENCRYPTION for the ranks; off, tls")
      ->check(CLI::IsMember({"off", "tls"}));
  // A launcher starts this program with it on other hosts.
  app.add_flag("--agent", line.agent)->group("");
  app.add_option("--rendezvous", line.launch.rendezvous,
                 "host:port at which the ranks meet, those of PyTorch at the next one [free ports "
                 "of 127.0.0.1; with several hosts, port 29600 of the first]");
  describe_ends(app, line, duration);
  app.add_flag_callback(
      "--no-prefix", [&] { line.launch.prefix = false; },
      "Pass output on without \"[rank] \" before each line");
  app.add_flag("--json", line.launch.json,
               "End with a line of JSON about each rank's end, with null for what is not known");
  app.add_flag("--print-job-key", line.print_job_key,
               "Print a fresh job key and do nothing else; for jobs with --host-index, of other "
               "launchers, or whose processes are started by hand");
}

// Returns the options to append to a remote shell's words. There are none if it is not ssh, if a
// host is among the words (a gateway, with a command of its own), or a file of settings (-F), which
// decides then.
std::vector<std::string> options_behind(const std::vector<std::string>& shell) {
  constexpr std::string_view kLettersWithValue = "BbcDEeFIiJLlmOoPpQRSWw";
  if (shell.front().substr(shell.front().rfind('/') + 1) != "ssh") return {};
  bool wants_terminal = false;
  for (std::size_t i = 1; i < shell.size(); ++i) {
    const std::string& word = shell[i];
    const std::size_t valued = word.find_first_of(kLettersWithValue, 1);
    const std::size_t last = std::min(valued, word.size() - 1);
    if (word.size() < 2 || word[0] != '-' || word[1] == '-' || word[last] == 'F') return {};
    wants_terminal |= word.substr(0, last + 1).find('t') != std::string::npos;
    if (valued + 1 == word.size()) ++i;  // The value is the next word, else the rest of this one.
  }
  std::vector<std::string> options = CLI::detail::split_up(std::string(kSshOptions));
  if (wants_terminal) std::erase(options, "-T");
  return options;
}

// Sets `line.launch` from the options for hosts, and checks that they fit together.
Status settle_hosts(const CLI::App& app, CommandLine& line) {
  launch::LaunchOptions& options = line.launch;
  options.hosts.front().ranks = line.ranks;
  if (!options.rendezvous.empty()) {
    const auto place = bootstrap::parse_host_port(options.rendezvous);
    if (!place.ok()) return place.status().with_context("--rendezvous");
  }
  if (app.count("--hosts") > 0) {
    STRETTO_ASSIGN_OR_RETURN(options.hosts, launch::read_hosts(line.hosts, line.ranks));
    if (app.count("--host-index") == 0) {
      options.host_wait = job::to_duration(line.host_wait_seconds);
      std::vector<std::string>& shell = options.remote_shell;
      shell = CLI::detail::split_up(line.remote_shell);
      if (shell.empty()) return status_of(StatusCode::invalid_argument, "--ssh names no program");
      const std::vector<std::string> more = options_behind(shell);
      shell.insert(shell.end(), more.begin(), more.end());
    }
  }
  STRETTO_RETURN_IF_ERROR(launch::check_meeting_place(options));
  for (const char* way : {"--ssh", "--wait-for-hosts"}) {
    if (app.count(way) == 0 || !options.remote_shell.empty()) continue;
    return status_of(StatusCode::invalid_argument,
                     "{} is for the way to other hosts: it needs --hosts, and no --host-index",
                     way);
  }
  const int last = static_cast<int>(options.hosts.size()) - 1;
  if (options.host_index <= last) return {};
  return status_of(StatusCode::invalid_argument, "--host-index is {}, but must be from 0 to {}",
                   options.host_index, last);
}

// MPI processes find each other through MPI's own launcher, mpirun. So mpirun is the one process
// that this launcher starts; it starts and numbers the ranks, and must not pass on its own numbers,
// which these variables hold.
constexpr const char* kNumbers[] = {"STRETTO_RANK",       "STRETTO_SIZE",      "STRETTO_LOCAL_RANK",
                                    "STRETTO_LOCAL_SIZE", "STRETTO_STATUS_FD", "RANK",
                                    "WORLD_SIZE",         "LOCAL_RANK",        "LOCAL_WORLD_SIZE"};
constexpr const char* kOpenMpiNames = "OMPI_MCA_mca_base_env_list";

// Returns the names of the variables that ranks of other hosts need from this environment: Open MPI
// passes on only named variables, other MPIs pass on all.
std::string names_for_other_hosts(const launch::LaunchOptions& options) {
  std::vector<std::string> names;
  if (const auto own = process_environment().get(kOpenMpiNames)) names.push_back(*own);
  for (const std::string& variable :
       launch::rank_environment(options, {}, launch::inherited_environment())) {
    const std::string name = variable.substr(0, variable.find('='));
    const bool is_number = std::ranges::find(kNumbers, name) != std::end(kNumbers);
    const bool is_plain = std::ranges::all_of(
        name, [](unsigned char letter) { return std::isalnum(letter) != 0 || letter == '_'; });
    if (!is_number && is_plain && !launch::is_of_this_host(variable)) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ";"));
}

// Turns the job into one process, mpirun, that starts the ranks. Ranks of several hosts meet at
// rank 0's host, because this process may be on any host.
Status let_mpirun_start_ranks(const CLI::App& app, CommandLine& line) {
  for (const char* ours : {"--host-index", "--ssh", "--wait-for-hosts", "--restarts"}) {
    if (app.count(ours) == 0) continue;
    return status_of(StatusCode::invalid_argument,
                     "{} is not for --transport mpi: mpirun starts the ranks of all hosts, in its "
                     "own way",
                     ours);
  }
  launch::LaunchOptions& options = line.launch;
  const bool is_here = line.hosts.empty();
  // mpirun shall use this host even inside an allocation of several hosts, and also if it has fewer
  // cores than ranks.
  if (is_here) options.hosts.front().name = "localhost";
  int most = 1;
  std::vector<std::string> shares;
  for (const launch::HostShare& host : options.hosts) {
    if (host.name.find('@') != std::string::npos) {
      return status_of(StatusCode::invalid_argument,
                       "{} names a user, but mpirun reaches hosts in its own way", host.name);
    }
    most = std::max(most, host.ranks);
    shares.push_back(fmt::format("{}:{}", host.name, host.ranks));
  }
  const std::string threads = std::to_string(std::max(1, usable_cores() / most));
  ::setenv("OMP_NUM_THREADS", threads.c_str(), /*replace=*/0);
  std::vector<std::string> command{"env"};
  for (const char* number : kNumbers) command.insert(command.end(), {"-u", number});
  if (!is_here) {
    const std::string place =
        options.rendezvous.empty()
            ? bootstrap::format_host_port(options.hosts.front().name, launch::kDefaultPort)
            : std::exchange(options.rendezvous, {});
    command.insert(command.end(),
                   {"STRETTO_RENDEZVOUS=tcp://" + place,
                    std::string(kOpenMpiNames) + "=" + names_for_other_hosts(options)});
  }
  command.insert(command.end(), {"mpirun", "-n", std::to_string(options.size()), "-host",
                                 fmt::format("{}", fmt::join(shares, ",")), "--bind-to", "none"});
  options.command.insert(options.command.begin(), command.begin(), command.end());
  options.hosts = {{}};
  options.remote_shell.clear();
  options.starter = "mpirun";
  options.prefix = false;
  return {};
}

Result<bootstrap::JobKey> find_key(const launch::LaunchOptions& options) {
  if (const auto text = process_environment().get(kKeyVariable)) {
    const auto key = bootstrap::JobKey::parse(*text);
    return key.ok() ? key : key.status().with_context(kKeyVariable);
  }
  if (options.hosts.size() == 1 || !options.remote_shell.empty())
    return bootstrap::JobKey::generate();
  return status_of(StatusCode::invalid_argument,
                   "{} is not set: the launchers of several hosts need the same key; make one, "
                   "once, with: stretto run --print-job-key",
                   kKeyVariable);
}

int print_job_key() {
  const auto key = bootstrap::JobKey::generate();
  if (!key.ok()) return usage_error("run", key.status().message());
  fmt::print("{}\n", key.value().hexadecimal());
  return 0;
}

}  // namespace

int usage_error(std::string_view command, std::string_view sentence) {
  fmt::print(stderr, "stretto {}: {}\n(stretto {} --help shows all options and examples)\n",
             command, sentence, command);
  return 2;
}

std::optional<int> parse(CLI::App& app, std::string_view command,
                         std::vector<std::string> arguments, std::string_view hint_for_extras) {
  try {
    // CLI11 wants the arguments in reverse order.
    std::ranges::reverse(arguments);
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ExtrasError& error) {
    return usage_error(command, fmt::format("{}{}", error.what(), hint_for_extras));
  } catch (const CLI::ParseError& error) {
    return usage_error(command, error.what());
  }
  return std::nullopt;
}

CLI::Validator number_within(double low, double high, const std::string& unit) {
  return {
      [=](const std::string& text) {
        double value = 0;
        const bool fits = CLI::detail::lexical_cast(text, value) && value >= low && value <= high;
        return fits ? std::string()
                    : fmt::format("{} is no number of {} from {:g} to {:g}", text, unit, low, high);
      },
      unit};
}

CLI::Validator whole_number(std::int64_t low, std::int64_t high) {
  const std::string range = fmt::format("from {} to {}", low, high);
  return {[=](std::string& text) {
            const auto value = parse_number<std::int64_t>(text);
            if (!value || *value < low || *value > high) {
              return fmt::format("{} is no whole number {}", text, range);
            }
            text = std::to_string(*value);
            return std::string();
          },
          range};
}

int run_command(const std::vector<std::string>& arguments) {
  const auto dashes = std::ranges::find(arguments, "--");
  CommandLine line;
  CLI::App app(kDescription, "stretto run");
  describe(app, line);
  const auto status =
      parse(app, "run", {arguments.begin(), dashes}, " (the program goes behind \"--\")");
  if (status) return *status;
  if (line.print_job_key) return print_job_key();
  if (line.agent) return launch::serve_launcher();

  launch::LaunchOptions& options = line.launch;
  if (dashes != arguments.end()) options.command = {dashes + 1, arguments.end()};
  options.time_limit = job::to_duration(line.time_limit_seconds);
  options.settle_time = job::to_duration(line.settle_seconds);
  options.grace_time = job::to_duration(line.grace_seconds);
  if (options.command.empty()) {
    return usage_error("run",
                       "no program: put it behind \"--\", as in: stretto run -n 4 -- ./train");
  }
  // The ranks inherit this process's environment.
  if (!line.transport.empty()) ::setenv("STRETTO_TRANSPORT", line.transport.c_str(), 1);
  if (!line.encryption.empty()) ::setenv("STRETTO_ENCRYPTION", line.encryption.c_str(), 1);
  Status settled = settle_hosts(app, line);
  if (settled.ok() && line.transport == "mpi") settled = let_mpirun_start_ranks(app, line);
  if (!settled.ok()) return usage_error("run", settled.message());
  const auto key = find_key(options);
  if (!key.ok()) return usage_error("run", key.status().message());
  options.key = key.value();
  configure_log(process_environment(), "stretto run");
  return launch::launch(options);
}

}  // namespace stretto::tools

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/job.h"

#include <charconv>
#include <limits>

#include "stretto/base/environment.h"
#include "stretto/bootstrap/socket.h"

namespace stretto::bootstrap {
namespace {

// A value and where it came from: "STRETTO_RANK", "JoinOptions::rank".
template <class T>
struct Sourced {
  T value;
  std::string source;
};

template <class T>
using MaybeSourced = std::optional<Sourced<T>>;

Result<int> parse_number(const std::string& variable, const std::string& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    return status_of(StatusCode::invalid_argument, "{}=\"{}\" is not a number", variable, text);
  }
  return number;
}

Result<MaybeSourced<int>> read_number(const Environment& environment, const std::string& variable) {
  const auto text = environment.get(variable);
  if (!text) return MaybeSourced<int>();
  const Result<int> number = parse_number(variable, *text);
  if (!number.ok()) return number.status();
  return MaybeSourced<int>({number.value(), variable});
}

MaybeSourced<std::string> read_text(const Environment& environment, const std::string& variable) {
  const auto text = environment.get(variable);
  if (!text) return std::nullopt;
  return Sourced<std::string>{*text, variable};
}

// `first` where it is present, else `second`; both must not contradict each other.
template <class T>
Result<MaybeSourced<T>> agree(const MaybeSourced<T>& first, const MaybeSourced<T>& second) {
  if (first && second && first->value != second->value) {
    return status_of(StatusCode::invalid_argument,
                     "{} says {}, but {} says {}: unset one of them, or make them equal",
                     first->source, first->value, second->source, second->value);
  }
  return first ? first : second;
}

// What one kind of launcher, or the options, say about this process.
struct Place {
  MaybeSourced<int> rank;
  MaybeSourced<int> size;

  bool empty() const { return !rank && !size; }
};

Result<Place> read_place(const Environment& environment, const std::string& rank_variable,
                         const std::string& size_variable) {
  const auto rank = read_number(environment, rank_variable);
  if (!rank.ok()) return rank.status();
  const auto size = read_number(environment, size_variable);
  if (!size.ok()) return size.status();
  return Place{rank.value(), size.value()};
}

Result<Place> agree(const Place& first, const Place& second) {
  const auto rank = agree(first.rank, second.rank);
  if (!rank.ok()) return rank.status();
  const auto size = agree(first.size, second.size);
  if (!size.ok()) return size.status();
  return Place{rank.value(), size.value()};
}

Status check_place(const Place& place) {
  if (place.rank.has_value() != place.size.has_value()) {
    const auto& given = place.rank ? place.rank : place.size;
    return status_of(StatusCode::invalid_argument,
                     "{} is set, but nothing says the {}: set both, or start the program with "
                     "stretto run or torchrun",
                     given->source, place.rank ? "size of the job" : "rank of this process");
  }
  if (place.empty()) return {};
  if (place.size->value < 1) {
    return status_of(StatusCode::invalid_argument, "{} says {}: a job has at least one rank",
                     place.size->source, place.size->value);
  }
  if (place.rank->value < 0 || place.rank->value >= place.size->value) {
    return status_of(StatusCode::invalid_argument,
                     "{} says {}, but {} says {}: ranks go from 0 to size - 1", place.rank->source,
                     place.rank->value, place.size->source, place.size->value);
  }
  return {};
}

template <class T>
void note(Job& job, std::string_view what, const Sourced<T>& value) {
  job.sources += fmt::format("{} {} from {}\n", what, value.value, value.source);
}

Status resolve_place(const JoinOptions& options, const Environment& environment, Job& job) {
  Place from_options;
  if (options.rank) from_options.rank = {*options.rank, "JoinOptions::rank"};
  if (options.size) from_options.size = {*options.size, "JoinOptions::size"};
  const auto from_stretto = read_place(environment, "STRETTO_RANK", "STRETTO_SIZE");
  if (!from_stretto.ok()) return from_stretto.status();
  const auto from_torchrun = read_place(environment, "RANK", "WORLD_SIZE");
  if (!from_torchrun.ok()) return from_torchrun.status();

  const auto launched = agree(from_stretto.value(), from_torchrun.value());
  if (!launched.ok()) return launched.status();
  const auto place = agree(from_options, launched.value());
  if (!place.ok()) return place.status();
  STRETTO_RETURN_IF_ERROR(check_place(place.value()));

  if (!from_stretto.value().empty()) {
    job.launcher = Launcher::stretto_run;
  } else if (!from_torchrun.value().empty()) {
    job.launcher = Launcher::torchrun;
  }
  // Options that only repeat what a launcher said do not replace the launcher; another meeting
  // place does.
  if (!options.rendezvous.empty() || (launched.value().empty() && !from_options.empty())) {
    job.launcher = Launcher::options;
  }
  if (place.value().empty()) return {};
  job.rank = place.value().rank->value;
  job.size = place.value().size->value;
  note(job, "rank", *place.value().rank);
  note(job, "size", *place.value().size);
  return {};
}

// torchrun's store, and the prefix that belongs to this attempt of this run.
Result<Sourced<std::string>> torchrun_rendezvous(const Environment& environment, Job& job) {
  const auto host = environment.get("MASTER_ADDR");
  const auto port = environment.get("MASTER_PORT");
  if (!host || !port) {
    return status_of(StatusCode::invalid_argument,
                     "RANK and WORLD_SIZE are set, but {} is not: torchrun sets all of them",
                     host ? "MASTER_PORT" : "MASTER_ADDR");
  }
  const Result<int> number = parse_number("MASTER_PORT", *port);
  if (!number.ok()) return number.status();
  job.store_prefix =
      fmt::format("stretto/{}/{}/", environment.get("TORCHELASTIC_RUN_ID").value_or("none"),
                  environment.get("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  return Sourced<std::string>{format_host_port(*host, number.value()),
                              "MASTER_ADDR and MASTER_PORT"};
}

Result<Sourced<std::string>> find_rendezvous(const JoinOptions& options,
                                             const Environment& environment, Job& job) {
  if (job.launcher == Launcher::torchrun) return torchrun_rendezvous(environment, job);
  MaybeSourced<std::string> from_options;
  if (!options.rendezvous.empty()) from_options = {options.rendezvous, "JoinOptions::rendezvous"};
  auto rendezvous = agree(from_options, read_text(environment, "STRETTO_RENDEZVOUS"));
  if (!rendezvous.ok()) return rendezvous.status();
  if (*rendezvous) return **rendezvous;
  return status_of(StatusCode::invalid_argument,
                   "the job has {} ranks, but neither STRETTO_RENDEZVOUS nor "
                   "JoinOptions::rendezvous says where they meet (host:port); stretto run sets it",
                   job.size);
}

Status resolve_rendezvous(const JoinOptions& options, const Environment& environment, Job& job) {
  if (job.size == 1) return {};
  const auto rendezvous = find_rendezvous(options, environment, job);
  if (!rendezvous.ok()) return rendezvous.status();
  const Result<HostPort> address = parse_host_port(rendezvous.value().value);
  if (!address.ok()) return address.status().with_context(rendezvous.value().source);
  job.rendezvous_host = address.value().host;
  job.rendezvous_port = address.value().port;
  note(job, "rendezvous", rendezvous.value());
  return {};
}

Status resolve_key(const Environment& environment, Job& job) {
  if (job.size == 1) return {};
  const auto text = environment.get("STRETTO_JOB_KEY");
  if (!text) {
    if (job.launcher == Launcher::torchrun) return {};
    return status_of(StatusCode::invalid_argument,
                     "STRETTO_JOB_KEY is not set: ranks without the job's key cannot join; stretto "
                     "run sets it, stretto run --print-job-key makes one");
  }
  const Result<JobKey> key = JobKey::parse(*text);
  if (!key.ok()) return key.status().with_context("STRETTO_JOB_KEY");
  job.key = key.value();
  job.sources += "job key from STRETTO_JOB_KEY\n";
  return {};
}

Status resolve_transport(const JoinOptions& options, const Environment& environment, Job& job) {
  const auto transport = environment.get("STRETTO_TRANSPORT");
  if (transport && *transport != "auto" && *transport != "shm" && *transport != "tcp") {
    return status_of(StatusCode::invalid_argument,
                     "STRETTO_TRANSPORT=\"{}\" is not one of auto, shm, tcp", *transport);
  }
  if (options.disable_shared_memory && transport == "shm") {
    return status_of(StatusCode::invalid_argument,
                     "JoinOptions::disable_shared_memory is set, but STRETTO_TRANSPORT says shm");
  }
  job.shared_memory = !options.disable_shared_memory && transport != "tcp";
  if (transport) job.sources += fmt::format("transport {} from STRETTO_TRANSPORT\n", *transport);
  if (options.disable_shared_memory) {
    job.sources += "no shared memory, from JoinOptions::disable_shared_memory\n";
  }
  return {};
}

}  // namespace

Result<Job> resolve_job(const JoinOptions& options, const Environment& environment) {
  Job job;
  STRETTO_RETURN_IF_ERROR(resolve_place(options, environment, job));
  STRETTO_RETURN_IF_ERROR(resolve_rendezvous(options, environment, job));
  STRETTO_RETURN_IF_ERROR(resolve_key(environment, job));
  STRETTO_RETURN_IF_ERROR(resolve_transport(options, environment, job));
  return job;
}

}  // namespace stretto::bootstrap

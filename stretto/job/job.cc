// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/job.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>

#include <fmt/format.h>

#include "stretto/bootstrap/socket.h"
#include "stretto/job/slurm.h"

namespace stretto::job {
namespace {

// The most connections between two ranks: more than fill any network.
constexpr int kStreamsMax = 16;

Status set_address(Job& job, RendezvousKind kind, std::string_view text) {
  STRETTO_ASSIGN_OR_RETURN(job.rendezvous, bootstrap::parse_host_port(text));
  job.rendezvous_kind = kind;
  return {};
}

// "host:port", "tcp://host:port" or "file:///path".
Status set_rendezvous(Job& job, const std::string& text) {
  constexpr std::string_view kTcp = "tcp://";
  constexpr std::string_view kFile = "file://";
  if (text.starts_with(kTcp)) {
    return set_address(job, RendezvousKind::rank_0_store, text.substr(kTcp.size()));
  }
  if (text.starts_with(kFile)) {
    job.rendezvous_kind = RendezvousKind::file;
    job.rendezvous_path = text.substr(kFile.size());
    if (job.rendezvous_path.starts_with('/') && !job.rendezvous_path.ends_with('/')) return {};
    return status_of(StatusCode::invalid_argument,
                     "\"{}\" names no file: want file:///path/of/a/file, with three slashes", text);
  }
  if (text.find("://") != std::string::npos) {
    return status_of(StatusCode::invalid_argument,
                     "\"{}\" is no place to meet: want host:port, tcp://host:port or file:///path",
                     text);
  }
  return set_address(job, RendezvousKind::launcher_store, text);
}

// MASTER_ADDR and MASTER_PORT as "host:port"; empty if neither is set.
Result<MaybeSourced<std::string>> read_master(const Environment& environment) {
  const auto host = read_text(environment, "MASTER_ADDR");
  STRETTO_ASSIGN_OR_RETURN(const auto port, read_number(environment, "MASTER_PORT"));
  if (!host && !port) return MaybeSourced<std::string>();
  if (!host || !port) {
    return status_of(StatusCode::invalid_argument, "{} is set, but {} is not: they go together",
                     host ? host->source : port->source, host ? "MASTER_PORT" : "MASTER_ADDR");
  }
  return MaybeSourced<std::string>(
      {bootstrap::format_host_port(host->value, port->value), "MASTER_ADDR and MASTER_PORT"});
}

Status meet_at_master(const Environment& environment, const Sourced<std::string>& master,
                      Job& job) {
  const bool agent = job.launcher == Launcher::torchrun;
  STRETTO_RETURN_IF_ERROR(
      set_address(job, agent ? RendezvousKind::torch_store : RendezvousKind::rank_0_store,
                  master.value)
          .with_context(master.source));
  if (agent) {
    job.store_prefix =
        fmt::format("stretto/{}/", environment.get("TORCHELASTIC_RUN_ID").value_or("none"));
  }
  job.sources.note("rendezvous", master);
  return {};
}

Status meet_by_slurm(const Environment& environment, Job& job) {
  STRETTO_ASSIGN_OR_RETURN(job.rendezvous, slurm_meeting_place(environment));
  job.rendezvous_kind = RendezvousKind::rank_0_store;
  job.sources.note(
      "rendezvous",
      Sourced<std::string>{bootstrap::format_host_port(job.rendezvous.host, job.rendezvous.port),
                           "Slurm's list of hosts and number of the job"});
  return {};
}

// Open MPI names its jobs; ranks of one host can meet in a file of that name.
Status meet_by_mpi(const Environment& environment, Job& job) {
  const auto name = environment.get("PMIX_NAMESPACE");
  STRETTO_ASSIGN_OR_RETURN(const auto local_size,
                           read_number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE"));
  const bool one_host = local_size && local_size->value == job.size;
  if (!name || !one_host) {
    return status_of(StatusCode::invalid_argument,
                     "{}: say where the ranks meet with STRETTO_RENDEZVOUS=tcp://HOST:PORT, with "
                     "the host of rank 0 (mpirun -x or -genv passes it on)",
                     local_size && !one_host
                         ? "the ranks that mpirun has started are on several hosts"
                         : "this mpirun does not say by what name its ranks could find each other");
  }
  std::string file = *name;
  std::replace_if(
      file.begin(), file.end(),
      [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '@' && c != '_'; },
      '_');
  job.rendezvous_kind = RendezvousKind::file;
  job.makes_folder = true;
  job.rendezvous_path = fmt::format("{}/stretto-{}/{}", environment.get("TMPDIR").value_or("/tmp"),
                                    ::geteuid(), file);
  job.sources.note("rendezvous",
                   Sourced<std::string>{"file://" + job.rendezvous_path, "PMIX_NAMESPACE"});
  return {};
}

// The meeting place that the option or STRETTO_RENDEZVOUS names.
Result<MaybeSourced<std::string>> given_rendezvous(const JoinOptions& options,
                                                   const Environment& environment) {
  MaybeSourced<std::string> from_options;
  if (!options.rendezvous.empty()) from_options = {options.rendezvous, "option rendezvous"};
  return agree(from_options, read_text(environment, "STRETTO_RENDEZVOUS"));
}

Status resolve_rendezvous(const JoinOptions& options, const Environment& environment, Job& job) {
  if (job.size == 1) return {};
  STRETTO_ASSIGN_OR_RETURN(const auto given, given_rendezvous(options, environment));
  if (given) {
    job.sources.note("rendezvous", *given);
    return set_rendezvous(job, given->value).with_context(given->source);
  }
  const bool sets_rank = job.launcher == Launcher::torchrun || job.launcher == Launcher::variables;
  if (sets_rank || job.launcher == Launcher::mpi || job.launcher == Launcher::slurm) {
    STRETTO_ASSIGN_OR_RETURN(const auto master, read_master(environment));
    if (master) return meet_at_master(environment, *master, job);
  }
  if (job.launcher == Launcher::slurm) return meet_by_slurm(environment, job);
  if (job.launcher == Launcher::mpi) return meet_by_mpi(environment, job);
  if (sets_rank) {
    return status_of(StatusCode::invalid_argument,
                     "RANK and WORLD_SIZE are set, but MASTER_ADDR is not: nothing says where the "
                     "ranks meet");
  }
  return status_of(StatusCode::invalid_argument,
                   "the job has {} ranks, but neither STRETTO_RENDEZVOUS nor "
                   "option rendezvous says where they meet (host:port, tcp://host:port or "
                   "file:///path); stretto run sets it",
                   job.size);
}

Status resolve_key(const Environment& environment, Job& job) {
  const auto text = environment.get("STRETTO_JOB_KEY");
  if (!text) {
    if (job.rendezvous_kind != RendezvousKind::launcher_store) {
      job.sources.add("job key from the store: rank 0 makes one");
      return {};
    }
    return status_of(StatusCode::invalid_argument,
                     "STRETTO_JOB_KEY is not set: ranks without the job's key cannot join; stretto "
                     "run sets it, stretto run --print-job-key makes one");
  }
  const Result<bootstrap::JobKey> key = bootstrap::JobKey::parse(*text);
  if (!key.ok()) return key.status().with_context("STRETTO_JOB_KEY");
  job.key = key.value();
  job.sources.add("job key from STRETTO_JOB_KEY");
  return {};
}

Status resolve_transport(const JoinOptions& options, const Environment& environment, Job& job) {
  constexpr std::array<std::string_view, 5> kTransports = {"auto", "shm", "tcp", "mpi", "ucx"};
  constexpr std::array<std::string_view, 4> kBackends = {"stretto", "mpi", "nccl", "cuda"};
  STRETTO_ASSIGN_OR_RETURN(const auto transport,
                           read_choice(environment, "STRETTO_TRANSPORT", "transport", kTransports,
                                       job.sources, options.transport));
  STRETTO_ASSIGN_OR_RETURN(const auto backend,
                           read_choice(environment, "STRETTO_BACKEND", "backend", kBackends,
                                       job.sources, options.backend));
  if (options.disable_shared_memory && transport.value == "shm") {
    return status_of(StatusCode::invalid_argument,
                     "option disable_shared_memory is set, but {} says shm", transport.source);
  }
  job.shared_memory = !options.disable_shared_memory && transport.value != "tcp";
  if (transport.value == "mpi" || transport.value == "ucx") job.engine = transport.value;
  job.backend = backend.value;
  job.plugin = read_text(environment, "STRETTO_PLUGIN", "plug-in", job.sources);
  if (options.disable_shared_memory) {
    job.sources.add("no shared memory, from option disable_shared_memory");
  }
  return {};
}

// A key that the store hands out has gone through the network unencrypted.
Status check_key_is_secret(const Job& job, const std::string& source) {
  if (job.key || job.size == 1 || job.rendezvous_kind == RendezvousKind::file) return {};
  return status_of(StatusCode::invalid_argument,
                   "{} wants encryption, but STRETTO_JOB_KEY is not set, and the key that rank 0 "
                   "would make goes to the others unencrypted: set it to the same on all ranks "
                   "(stretto run --print-job-key makes one)",
                   source);
}

// To be called when the key and the transport are known.
Status resolve_encryption(const JoinOptions& options, const Environment& environment, Job& job) {
  constexpr std::array<std::string_view, 2> kEncryptions = {"off", "tls"};
  STRETTO_ASSIGN_OR_RETURN(
      const auto given, read_choice(environment, "STRETTO_ENCRYPTION", "encryption", kEncryptions,
                                    job.sources, options.encryption));
  job.encrypted = given.value == "tls";
  if (!job.encrypted) return {};
  if (!job.engine.empty()) {
    return status_of(StatusCode::invalid_argument,
                     "{} wants encryption, but the transport is {}, whose messages only {} itself "
                     "could encrypt",
                     given.source, job.engine, job.engine);
  }
  if (job.backend != "stretto") {
    return status_of(StatusCode::invalid_argument,
                     "{} wants encryption, but the backend is {}, whose collectives only {} itself "
                     "could encrypt",
                     given.source, job.backend, job.backend);
  }
  return check_key_is_secret(job, given.source);
}

// Each pair of ranks uses all networks, unless STRETTO_STREAMS says otherwise.
void resolve_networks(const Environment& environment, Job& job) {
  std::istringstream names(read_text(environment, "STRETTO_NETWORK", "network", job.sources));
  for (std::string name; std::getline(names, name, ',');) job.networks.push_back(name);
  job.streams = std::max(1, static_cast<int>(job.networks.size()));
  if (!job.networks.empty()) return;
  job.sources.by_default("network", "towards the store");
  for (const char* variable : {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) {
    const auto name = environment.get(variable);
    if (name) job.foreign_network = fmt::format("{}={}", variable, *name);
  }
}

Status resolve_streams(const Environment& environment, Job& job) {
  STRETTO_ASSIGN_OR_RETURN(const auto streams, read_number(environment, "STRETTO_STREAMS"));
  if (!streams) {
    job.sources.by_default("streams", job.streams);
    return {};
  }
  if (streams->value < 1 || streams->value > kStreamsMax) {
    return status_of(StatusCode::invalid_argument, "STRETTO_STREAMS says {}: want 1 to {}",
                     streams->value, kStreamsMax);
  }
  job.streams = streams->value;
  job.sources.note("streams", *streams);
  return {};
}

Status resolve_network(const Environment& environment, Job& job) {
  resolve_networks(environment, job);
  STRETTO_RETURN_IF_ERROR(resolve_streams(environment, job));
  job.congestion_control =
      read_text(environment, "STRETTO_CONGESTION_CONTROL", "congestion control", job.sources);
  if (job.congestion_control.empty()) job.sources.by_default("congestion control", "the system's");
  const std::string text = read_text(environment, "STRETTO_PORTS", "ports", job.sources);
  if (text.empty()) {
    job.sources.by_default("ports", "as the system chooses");
    return {};
  }
  const Result<bootstrap::PortRange> ports = bootstrap::parse_port_range(text);
  if (!ports.ok()) return ports.status().with_context("STRETTO_PORTS");
  job.ports = ports.value();
  return {};
}

Status resolve_network_timeout(const JoinOptions& options, const Environment& environment,
                               Job& job) {
  MaybeSourced<double> from_options;
  if (options.network_timeout) {
    from_options = {seconds(*options.network_timeout), "option network_timeout"};
  }
  STRETTO_ASSIGN_OR_RETURN(const auto variable,
                           read_seconds(environment, "STRETTO_NETWORK_TIMEOUT"));
  STRETTO_ASSIGN_OR_RETURN(const auto wanted, agree(from_options, variable));
  if (!wanted) {
    job.sources.by_default("network timeout in seconds", seconds(job.network_timeout));
    return {};
  }
  const double value = wanted->value;
  if (value != 0 && value < 1) {
    return status_of(StatusCode::invalid_argument, "{} says {}: want 0 or at least 1, in seconds",
                     wanted->source, value);
  }
  // The longest Duration, as seconds, does not fit into a Duration again: take the option's as it
  // is.
  job.network_timeout = options.network_timeout.value_or(to_duration(value));
  job.sources.note("network timeout in seconds", *wanted);
  return {};
}

// The other ranks of a restarted process's job do not join again.
Status refuse_restarted(const Environment& environment) {
  const auto restart = environment.get("STRETTO_RESTART_COUNT");
  if (!restart) return {};
  return status_of(StatusCode::invalid_argument,
                   "this process was started again by stretto run --restarts "
                   "(STRETTO_RESTART_COUNT={}), and join() cannot enter a job that runs: a program "
                   "whose ranks are started again joins by stretto::ElasticJob",
                   *restart);
}

// Resolves how ranks are connected. Their number and the job key must be known.
Status resolve_connections(const JoinOptions& options, const Environment& environment, Job& job) {
  STRETTO_RETURN_IF_ERROR(resolve_transport(options, environment, job));
  STRETTO_RETURN_IF_ERROR(resolve_encryption(options, environment, job));
  STRETTO_RETURN_IF_ERROR(resolve_network(environment, job));
  return resolve_network_timeout(options, environment, job);
}

}  // namespace

Result<Job> resolve_job(const JoinOptions& options, const Environment& environment) {
  STRETTO_ASSIGN_OR_RETURN(const RankAndSize own, resolve_rank_and_size(options, environment));
  Job job{.launcher = own.launcher};
  if (!own.empty()) {
    job.rank = own.rank->value;
    job.size = own.size->value;
    job.sources.note("rank", *own.rank);
    job.sources.note("size", *own.size);
  } else {
    job.sources.by_default("rank 0 of", job.size);
  }
  if (job.size > 1) STRETTO_RETURN_IF_ERROR(refuse_restarted(environment));
  STRETTO_RETURN_IF_ERROR(resolve_rendezvous(options, environment, job));
  if (job.size > 1) STRETTO_RETURN_IF_ERROR(resolve_key(environment, job));
  job.mistake = resolve_connections(options, environment, job);
  return job;
}

Result<Job> given_job(std::shared_ptr<bootstrap::Store> store, Rank rank, int size,
                      const JoinOptions& options, const Environment& environment) {
  if (options.rank || options.size || !options.rendezvous.empty()) {
    return Status(StatusCode::invalid_argument,
                  "make_communicator() has the rank, the size and the store as arguments; leave "
                  "rank, size and rendezvous out of its JoinOptions");
  }
  if (rank < 0 || rank >= size) {
    return status_of(StatusCode::invalid_argument, "rank {} is not one of {} ranks", rank.value(),
                     size);
  }
  if (store == nullptr) {
    return Status(StatusCode::invalid_argument, "make_communicator() needs a store");
  }
  Job job{.rank = rank.value(), .size = size};
  job.rendezvous_kind = RendezvousKind::given_store;
  job.store = std::move(store);
  job.sources.add(fmt::format("rank {}, size {} and the store from the program", job.rank, size));
  if (size > 1) STRETTO_RETURN_IF_ERROR(resolve_key(environment, job));
  job.mistake = resolve_connections(options, environment, job);
  return job;
}

std::string plugin_file(const Job& job, std::string_view name) {
  return name == (job.engine.empty() ? job.backend : job.engine) ? job.plugin : std::string();
}

std::size_t descriptors_for(const Job& job) {
  return static_cast<std::size_t>(job.size) * static_cast<std::size_t>(job.streams + 2);
}

Result<ElasticPlace> elastic_place(const JoinOptions& options, const Environment& environment) {
  if (options.rank || options.size) {
    return Status(StatusCode::invalid_argument,
                  "an elastic job gives its processes their ranks: leave rank and size out of the "
                  "options");
  }
  STRETTO_ASSIGN_OR_RETURN(const RankAndSize own, resolve_rank_and_size({}, environment));
  STRETTO_ASSIGN_OR_RETURN(const auto given, given_rendezvous(options, environment));
  if (!given && own.empty()) return ElasticPlace();
  Job job;
  if (given) {
    STRETTO_RETURN_IF_ERROR(set_rendezvous(job, given->value).with_context(given->source));
  }
  if (job.rendezvous_kind != RendezvousKind::launcher_store) {
    return status_of(
        StatusCode::invalid_argument,
        "an elastic job meets in the store of stretto run, at the HOST:PORT of "
        "STRETTO_RENDEZVOUS, which lasts as long as the job; {}",
        given ? given->source + " names another place" : "the launcher of this process has none");
  }
  STRETTO_RETURN_IF_ERROR(resolve_key(environment, job));
  STRETTO_RETURN_IF_ERROR(resolve_connections(options, environment, job));
  if (own.launcher == Launcher::mpi || job.engine == "mpi" || job.backend == "mpi") {
    return status_of(StatusCode::invalid_argument,
                     "the processes of an MPI start and end together, those of an elastic job come "
                     "and go: start them without mpirun, and with neither the transport nor the "
                     "backend mpi");
  }
  ElasticPlace place{.store = job.rendezvous, .key = *job.key};
  const std::string links = job.shared_memory ? "auto" : "tcp";
  place.settings =
      fmt::format("backend {}, transport {}, encryption {}, algorithm {}", job.backend,
                  job.engine.empty() ? links : job.engine, job.encrypted ? "tls" : "off",
                  environment.get("STRETTO_ALGORITHM").value_or("chosen"));
  if (own.launcher != Launcher::stretto_run) return place;
  place.launcher_rank = own.rank->value;
  place.launched_size = own.size->value;
  STRETTO_ASSIGN_OR_RETURN(const auto local_rank, read_number(environment, "STRETTO_LOCAL_RANK"));
  if (local_rank) place.local_rank = local_rank->value;
  return place;
}

}  // namespace stretto::job

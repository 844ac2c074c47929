// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/job.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>

#include "stretto/bootstrap/socket.h"
#include "stretto/job/slurm.h"

namespace stretto::job {
namespace {

template <class T>
void note(Job& job, std::string_view what, const Sourced<T>& value) {
  job.sources += fmt::format("{} {} from {}\n", what, value.value, value.source);
}

Status set_address(Job& job, RendezvousKind kind, std::string_view text) {
  const Result<bootstrap::HostPort> address = bootstrap::parse_host_port(text);
  if (!address.ok()) return address.status();
  job.rendezvous_kind = kind;
  job.rendezvous_host = address.value().host;
  job.rendezvous_port = address.value().port;
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
  const auto port = read_number(environment, "MASTER_PORT");
  if (!port.ok()) return port.status();
  if (!host && !port.value()) return MaybeSourced<std::string>();
  if (!host || !port.value()) {
    return status_of(StatusCode::invalid_argument, "{} is set, but {} is not: they go together",
                     host ? host->source : port.value()->source,
                     host ? "MASTER_PORT" : "MASTER_ADDR");
  }
  return MaybeSourced<std::string>({bootstrap::format_host_port(host->value, port.value()->value),
                                    "MASTER_ADDR and MASTER_PORT"});
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
        fmt::format("stretto/{}/{}/", environment.get("TORCHELASTIC_RUN_ID").value_or("none"),
                    environment.get("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  }
  note(job, "rendezvous", master);
  return {};
}

Status meet_by_slurm(const Environment& environment, Job& job) {
  const Result<bootstrap::HostPort> address = slurm_meeting_place(environment);
  if (!address.ok()) return address.status();
  job.rendezvous_kind = RendezvousKind::rank_0_store;
  job.rendezvous_host = address.value().host;
  job.rendezvous_port = address.value().port;
  note(job, "rendezvous",
       Sourced<std::string>{bootstrap::format_host_port(job.rendezvous_host, job.rendezvous_port),
                            "Slurm's list of hosts and number of the job"});
  return {};
}

// Open MPI names its jobs; ranks of one host can meet in a file of that name.
Status meet_by_mpi(const Environment& environment, Job& job) {
  const auto name = environment.get("PMIX_NAMESPACE");
  const auto local_size = read_number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE");
  if (!local_size.ok()) return local_size.status();
  const bool one_host = local_size.value() && local_size.value()->value == job.size;
  if (!name || !one_host) {
    return status_of(StatusCode::invalid_argument,
                     "{}: say where the ranks meet with STRETTO_RENDEZVOUS=tcp://HOST:PORT, with "
                     "the host of rank 0 (mpirun -x or -genv passes it on)",
                     local_size.value() && !one_host
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
  note(job, "rendezvous", Sourced<std::string>{"file://" + job.rendezvous_path, "PMIX_NAMESPACE"});
  return {};
}

Status resolve_rendezvous(const JoinOptions& options, const Environment& environment, Job& job) {
  if (job.size == 1) return {};
  MaybeSourced<std::string> from_options;
  if (!options.rendezvous.empty()) from_options = {options.rendezvous, "JoinOptions::rendezvous"};
  const auto given = agree(from_options, read_text(environment, "STRETTO_RENDEZVOUS"));
  if (!given.ok()) return given.status();
  if (given.value()) {
    note(job, "rendezvous", *given.value());
    return set_rendezvous(job, given.value()->value).with_context(given.value()->source);
  }
  const bool sets_rank = job.launcher == Launcher::torchrun || job.launcher == Launcher::variables;
  if (sets_rank || job.launcher == Launcher::mpi || job.launcher == Launcher::slurm) {
    const auto master = read_master(environment);
    if (!master.ok()) return master.status();
    if (master.value()) return meet_at_master(environment, *master.value(), job);
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
                   "JoinOptions::rendezvous says where they meet (host:port, tcp://host:port or "
                   "file:///path); stretto run sets it",
                   job.size);
}

Status resolve_key(const Environment& environment, Job& job) {
  if (job.size == 1) return {};
  const auto text = environment.get("STRETTO_JOB_KEY");
  if (!text) {
    if (job.rendezvous_kind != RendezvousKind::launcher_store) {
      job.sources += "job key from the store: rank 0 makes one\n";
      return {};
    }
    return status_of(StatusCode::invalid_argument,
                     "STRETTO_JOB_KEY is not set: ranks without the job's key cannot join; stretto "
                     "run sets it, stretto run --print-job-key makes one");
  }
  const Result<bootstrap::JobKey> key = bootstrap::JobKey::parse(*text);
  if (!key.ok()) return key.status().with_context("STRETTO_JOB_KEY");
  job.key = key.value();
  job.sources += "job key from STRETTO_JOB_KEY\n";
  return {};
}

Status resolve_transport(const JoinOptions& options, const Environment& environment, Job& job) {
  const auto transport = environment.get("STRETTO_TRANSPORT");
  constexpr std::array<std::string_view, 4> kTransports = {"auto", "shm", "tcp", "mpi"};
  if (transport && std::ranges::find(kTransports, *transport) == kTransports.end()) {
    return status_of(StatusCode::invalid_argument,
                     "STRETTO_TRANSPORT=\"{}\" is not one of auto, shm, tcp, mpi", *transport);
  }
  if (options.disable_shared_memory && transport == "shm") {
    return status_of(StatusCode::invalid_argument,
                     "JoinOptions::disable_shared_memory is set, but STRETTO_TRANSPORT says shm");
  }
  job.shared_memory = !options.disable_shared_memory && transport != "tcp";
  job.messages_by_mpi = transport == "mpi";
  job.mpi_plugin = environment.get("STRETTO_MPI_PLUGIN").value_or("");
  if (transport) job.sources += fmt::format("transport {} from STRETTO_TRANSPORT\n", *transport);
  if (options.disable_shared_memory) {
    job.sources += "no shared memory, from JoinOptions::disable_shared_memory\n";
  }
  return {};
}

Status resolve_network(const Environment& environment, Job& job) {
  if (const auto network = environment.get("STRETTO_NETWORK")) {
    std::istringstream names(*network);
    for (std::string name; std::getline(names, name, ',');) job.networks.push_back(name);
    job.sources += fmt::format("network {} from STRETTO_NETWORK\n", *network);
  }
  const auto text = environment.get("STRETTO_PORTS");
  if (!text) return {};
  const Result<bootstrap::PortRange> ports = bootstrap::parse_port_range(*text);
  if (!ports.ok()) return ports.status().with_context("STRETTO_PORTS");
  job.ports = ports.value();
  job.sources += fmt::format("ports {} from STRETTO_PORTS\n", *text);
  return {};
}

Status resolve_network_timeout(const JoinOptions& options, const Environment& environment,
                               Job& job) {
  MaybeSourced<double> from_options;
  if (options.network_timeout) {
    from_options = {seconds(*options.network_timeout), "JoinOptions::network_timeout"};
  }
  const auto variable = read_seconds(environment, "STRETTO_NETWORK_TIMEOUT");
  if (!variable.ok()) return variable.status();
  const auto wanted = agree(from_options, variable.value());
  if (!wanted.ok()) return wanted.status();
  if (!wanted.value()) return {};
  const double value = wanted.value()->value;
  if (value != 0 && value < 1) {
    return status_of(StatusCode::invalid_argument, "{} says {}: want 0 or at least 1, in seconds",
                     wanted.value()->source, value);
  }
  job.network_timeout = to_duration(value);
  note(job, "network timeout in seconds", *wanted.value());
  return {};
}

}  // namespace

Result<Job> resolve_job(const JoinOptions& options, const Environment& environment) {
  const Result<RankAndSize> place = resolve_place(options, environment);
  if (!place.ok()) return place.status();
  Job job{.launcher = place.value().launcher};
  if (!place.value().empty()) {
    job.rank = place.value().rank->value;
    job.size = place.value().size->value;
    note(job, "rank", *place.value().rank);
    note(job, "size", *place.value().size);
  }
  STRETTO_RETURN_IF_ERROR(resolve_rendezvous(options, environment, job));
  STRETTO_RETURN_IF_ERROR(resolve_key(environment, job));
  STRETTO_RETURN_IF_ERROR(resolve_transport(options, environment, job));
  STRETTO_RETURN_IF_ERROR(resolve_network(environment, job));
  STRETTO_RETURN_IF_ERROR(resolve_network_timeout(options, environment, job));
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
  if (const std::string server = store->server(); !server.empty()) {
    STRETTO_RETURN_IF_ERROR(set_address(job, RendezvousKind::given_store, server));
  }
  job.rendezvous_kind = RendezvousKind::given_store;
  job.store = std::move(store);
  STRETTO_RETURN_IF_ERROR(resolve_transport(options, environment, job));
  STRETTO_RETURN_IF_ERROR(resolve_network(environment, job));
  STRETTO_RETURN_IF_ERROR(resolve_network_timeout(options, environment, job));
  return job;
}

}  // namespace stretto::job

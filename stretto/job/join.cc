// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/join.h"

#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/descriptor_limit.h"
#include "stretto/base/error.h"
#include "stretto/base/fnv1a.h"
#include "stretto/base/log.h"
#include "stretto/base/take_word.h"
#include "stretto/bootstrap/mesh.h"
#include "stretto/bootstrap/shm_links.h"
#include "stretto/bootstrap/tcp_links.h"
#include "stretto/communicator/flight_recorder.h"
#include "stretto/communicator/scheduled_backend.h"
#include "stretto/job/device_factory.h"
#include "stretto/job/job.h"
#include "stretto/job/join_job.h"
#include "stretto/job/live_page.h"
#include "stretto/job/placement.h"
#include "stretto/job/plugin_factory.h"
#include "stretto/job/rendezvous.h"
#include "stretto/job/settings.h"
#include "stretto/job/sourced.h"
#include "stretto/job/status_board.h"
#include "stretto/transport/loopback/world.h"
#include "stretto/transport/packets/plane.h"

namespace stretto {
namespace {

using job::Job;
using job::Settings;

// What runs collectives besides schedules on host memory. Members are empty if nothing does.
struct Collectives {
  communicator::LibraryFactory library = {};
  job::OpenDevice open_device = {};
};

// A rank that is connected to all others. What is still missing needs all ranks together.
struct Joined {
  Settings settings;
  std::shared_ptr<group::Engine> engine;
  std::vector<std::int32_t> hosts;
  Collectives collectives = {};
};

// A function that tells `stretto top` what the rank does. Empty if the system refuses the memory
// for it; the job goes on without.
std::function<void(const group::LiveState&)> live_reporter(const job::LiveRank& who) {
  Result<job::LivePage> page = job::LivePage::create(who);
  if (page.ok()) {
    auto shared = std::make_shared<job::LivePage>(std::move(*page));
    return [shared](const group::LiveState& state) { shared->write(state); };
  }
  log(LogLevel::info, "{}: stretto top will not see this rank", page.status().message());
  return {};
}

// `name`: tells the job from others on the host in `stretto top`.
Result<Joined> make_engine(bootstrap::Mesh mesh, const Job& job, const std::string& name,
                           const Settings& settings, const Environment& environment) {
  mesh.endpoint->check_memory(settings.checks_memory);
  group::Engine::Options options{.progress_thread = settings.progress_thread,
                                 .local_ranks = mesh.local_ranks,
                                 .local_cores = mesh.local_cores,
                                 .names = std::move(mesh.names),
                                 .warn_after = settings.warn_after};
  auto board = std::make_shared<job::StatusBoard>(
      job::StatusBoard::open(environment, job.rank, job.size, job.launcher_ranks));
  if (board->connected()) {
    options.report_activity = [board](std::string_view text) { board->write(text); };
    options.find_obituary = [board](Rank rank) { return board->find_obituary(rank.value()); };
  }
  if (job.size > 1) {
    options.report_live_state = live_reporter({.job = name, .rank = job.rank, .size = job.size});
  }
  STRETTO_ASSIGN_OR_RETURN(auto engine,
                           group::Engine::create(std::move(mesh.endpoint), std::move(options)));
  return Joined{settings, std::move(engine), std::move(mesh.hosts)};
}

// The ways to connect ranks, best first.
std::vector<std::shared_ptr<bootstrap::LinkProvider>> links_of(const Job& job,
                                                               const bootstrap::JobKey& key) {
  std::vector<std::shared_ptr<bootstrap::LinkProvider>> links;
  if (job.shared_memory) links.push_back(bootstrap::shm_links());
  links.push_back(
      bootstrap::tcp_links({.network_timeout = job.network_timeout,
                            .networks = job.networks,
                            .foreign_network = job.foreign_network,
                            .ports = job.ports,
                            .streams = job.streams,
                            .congestion_control = job.congestion_control,
                            .tls_key = job.encrypted ? std::optional(key) : std::nullopt}));
  return links;
}

Result<Collectives> collectives_of(const Job& job, const Settings& settings,
                                   const Environment& environment) {
  const job::OwnDevice device{.number = settings.device, .local_rank = job.local_rank};
  if (job.backend == "nccl") {
    STRETTO_ASSIGN_OR_RETURN(auto library, job::nccl_factory(environment, device));
    return Collectives{.library = std::move(library)};
  }
  if (job.backend == "cuda") {
    STRETTO_ASSIGN_OR_RETURN(auto open_device, job::device_opener(environment, device));
    return Collectives{.open_device = std::move(open_device)};
  }
  if (job.backend == "stretto" || job.size == 1) return Collectives();
  STRETTO_ASSIGN_OR_RETURN(const auto plugin, transport::packets::load_plugin(
                                                  job.backend, job::plugin_file(job, job.backend)));
  return Collectives{.library = job::plugin_factory(plugin, job.size)};
}

using MakeDataPlane = std::function<Result<std::unique_ptr<transport::DataPlane>>()>;

// Makes the engine that moves all messages; the ranks then exchange its addresses. Empty if the
// links move messages.
Result<MakeDataPlane> engine_of(const Job& job, bootstrap::JoinNotes& notes) {
  using namespace transport::packets;
  if (job.engine.empty()) return MakeDataPlane();
  STRETTO_ASSIGN_OR_RETURN(const Plugin plugin,
                           load_plugin(job.engine, job::plugin_file(job, job.engine)));
  return MakeDataPlane([&job, &notes, plugin]() -> Result<std::unique_ptr<transport::DataPlane>> {
    const EngineOptions options{.rank = job.rank, .size = job.size};
    // MPI waits for all ranks while it starts, and neither a deadline nor another rank's failure
    // ends that wait. So no rank begins before all have come this far.
    if (job.engine == "mpi") {
      STRETTO_RETURN_IF_ERROR(notes.exchange("engine-start", "").status());
    }
    STRETTO_ASSIGN_OR_RETURN(auto engine, make_engine(plugin, options));
    STRETTO_ASSIGN_OR_RETURN(const auto addresses, notes.exchange("engine", engine->address()));
    return make_plane(std::move(engine), options, addresses);
  });
}

// Does all that can fail on this rank alone. The caller tells the other ranks of a failure.
Result<Joined> join_others(const Job& job, job::Rendezvous& rendezvous,
                           const Result<Settings>& settings, const Environment& environment) {
  STRETTO_RETURN_IF_ERROR(settings.status());
  STRETTO_ASSIGN_OR_RETURN(MakeDataPlane engine, engine_of(job, rendezvous.notes()));
  STRETTO_ASSIGN_OR_RETURN(auto collectives, collectives_of(job, settings.value(), environment));
  const bootstrap::MeshOptions mesh_options{
      .rank = job.rank,
      .size = job.size,
      .key = rendezvous.key(),
      .links = links_of(job, rendezvous.key()),
      .configuration = fnv1a(settings.value().algorithm + " " + job.engine + " " + job.backend),
      .make_data_plane = std::move(engine)};
  STRETTO_ASSIGN_OR_RETURN(auto mesh, bootstrap::connect_mesh(rendezvous.notes(), mesh_options));
  // A hash and not the key itself, since the name is shown to users.
  const std::string name = fmt::format("{:08x}", fnv1a(rendezvous.key().hexadecimal()) >> 32);
  Result<Joined> joined = make_engine(std::move(mesh), job, name, settings.value(), environment);
  if (!joined.ok()) return joined;
  joined->collectives = std::move(collectives);
  STRETTO_RETURN_IF_ERROR(rendezvous.finish());
  const auto advice = job::placement_advice(joined->hosts, job.backend);
  if (job.rank == 0 && !advice.empty()) log(LogLevel::warning, "{}", advice);
  return joined;
}

Result<Joined> join_alone(const Job& job, const Result<Settings>& settings,
                          const Environment& environment) {
  STRETTO_RETURN_IF_ERROR(job.mistake);
  STRETTO_RETURN_IF_ERROR(settings.status());
  STRETTO_ASSIGN_OR_RETURN(auto collectives, collectives_of(job, settings.value(), environment));
  STRETTO_ASSIGN_OR_RETURN(auto world, transport::loopback::make_world({.ranks = 1}));
  auto joined =
      make_engine({.endpoint = std::move(world.front())}, job, "", settings.value(), environment);
  if (joined.ok()) joined->collectives = std::move(collectives);
  return joined;
}

// Tells the other ranks of any failure on this rank, including a mistake in its settings.
Result<Joined> connect(const Job& job, const Result<Settings>& settings, Deadline deadline,
                       const Environment& environment) {
  if (job.size == 1) return join_alone(job, settings, environment);
  allow_descriptors(2 * job::descriptors_for(job));  // Leaves the program as many.
  auto opened = job::Rendezvous::open(job, deadline);
  if (!job.mistake.ok()) {  // Perhaps of all ranks: each fails with its own.
    if (opened.ok()) (void)opened.value()->notes().abandon(job.mistake);
    return job.mistake;
  }
  STRETTO_ASSIGN_OR_RETURN(const auto rendezvous, std::move(opened));
  Result<Joined> joined = join_others(job, *rendezvous, settings, environment);
  if (joined.ok()) return joined;
  return rendezvous->notes().abandon(joined.status());
}

void log_lines(std::string_view text) {
  while (!text.empty()) log(LogLevel::info, "{}", take_word(text, '\n'));
}

Result<std::unique_ptr<Communicator>> join_resolved(const Result<Job>& resolved,
                                                    const JoinOptions& options) {
  if (!resolved.ok()) return resolved.status();
  const Job& job = resolved.value();
  const Environment& environment = job::environment_of(options);
  configure_log(environment, fmt::format("stretto [rank {}]", job.rank));
  job::Sources sources = job.sources;
  const Result<Settings> settings = read_settings(options, environment, sources);
  log_lines(sources.text());
  const Deadline deadline = Deadline::after(options.join_timeout);
  Result<Joined> joined = connect(job, settings, deadline, environment);
  if (!joined.ok()) {
    return joined.status().with_context(
        fmt::format("rank {} of {} could not join", job.rank, job.size));
  }
  return communicator::ScheduledBackend::make_world(
      std::move(joined->engine),
      {.timeout = options.timeout,
       .algorithm = joined->settings.algorithm,
       .single_copy = joined->settings.single_copy,
       .group = {.hosts = std::move(joined->hosts), .verification = joined->settings.verification},
       .measure_links = communicator::link_cache_options(environment),
       .library = std::move(joined->collectives.library),
       .open_device = std::move(joined->collectives.open_device)},
      deadline);
}

}  // namespace

const Environment& job::environment_of(const JoinOptions& options) {
  return options.environment != nullptr ? *options.environment : process_environment();
}

Result<std::unique_ptr<Communicator>> job::join_job(const Result<Job>& resolved,
                                                    const JoinOptions& options) {
  try {
    return join_resolved(resolved, options);
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "joining the job: there is no memory left");
  }
}

std::unique_ptr<Communicator> job::join_in_rounds(std::shared_ptr<bootstrap::Store> store,
                                                  Rank rank, int size, const JoinOptions& options) {
  Result<Job> job = given_job(std::move(store), rank, size, options, environment_of(options));
  if (job.ok()) job->rendezvous_kind = RendezvousKind::torch_store;
  return join_job(job, options).or_throw();
}

void job::record_flight(Communicator& world, const Environment& environment,
                        std::optional<int> generation) {
  const auto prefix = environment.get("STRETTO_FLIGHT_RECORD");
  if (!prefix || prefix->empty()) return;
  const std::string part = generation ? fmt::format("{}_", *generation) : "";
  log(LogLevel::info, "flight record {} from STRETTO_FLIGHT_RECORD", *prefix);
  auto recorder = std::make_shared<FlightRecorder>();
  recorder->write_at_failure(fmt::format("{}{}{}", *prefix, part, world.rank().value()));
  world.observe(std::move(recorder));
}

std::unique_ptr<Communicator> join(const JoinOptions& options) {
  const Environment& environment = job::environment_of(options);
  auto world = job::join_job(job::resolve_job(options, environment), options).or_throw();
  job::record_flight(*world, environment);
  return world;
}

std::unique_ptr<Communicator> make_communicator(std::shared_ptr<bootstrap::Store> store, Rank rank,
                                                int size, const JoinOptions& options) {
  const Environment& environment = job::environment_of(options);
  return job::join_job(job::given_job(std::move(store), rank, size, options, environment), options)
      .or_throw();
}

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/job.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "stretto/base/error.h"
#include "stretto/bootstrap/memory_store.h"
#include "stretto/communicator/communicator.h"
#include "stretto/job/join.h"
#include "tests/support/expect_contains.h"
#include "tests/support/failures.h"
#include "tests/support/fake_environment.h"

namespace stretto::job {
namespace {

const std::string kKey(64, 'a');

Variables stretto_run() {
  return {{"STRETTO_RANK", "3"},
          {"STRETTO_SIZE", "4"},
          {"STRETTO_RENDEZVOUS", "127.0.0.1:4242"},
          {"STRETTO_JOB_KEY", kKey}};
}

Variables torchrun() {
  return {{"RANK", "1"},
          {"WORLD_SIZE", "2"},
          {"MASTER_ADDR", "node0"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_RUN_ID", "digits"},
          {"TORCHELASTIC_RESTART_COUNT", "2"}};
}

Variables open_mpi() {
  return {{"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
          {"OMPI_UNIVERSE_SIZE", "4"},
          {"PMIX_RANK", "1"},
          {"PMIX_NAMESPACE", "prterun-node0-28821@1"},
          {"TMPDIR", "/scratch"}};
}

Variables slurm() {
  return {{"SLURM_PROCID", "5"},
          {"SLURM_NTASKS", "8"},
          {"SLURM_JOB_ID", "123456"},
          {"SLURM_STEP_ID", "2"},
          {"SLURM_JOB_NODELIST", "node[07-09,12],login"}};
}

Variables by_hand() {
  return {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
}

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

Job resolve(const JoinOptions& options, const Variables& variables) {
  Job job = resolve_job(options, FakeEnvironment(variables)).or_throw();
  job.mistake.or_throw();
  return job;
}

void expect_invalid(const JoinOptions& options, const Variables& variables,
                    const std::string& sentence) {
  const auto job = resolve_job(options, FakeEnvironment(variables));
  expect_failure(job.ok() ? job.value().mistake : job.status(), StatusCode::invalid_argument,
                 sentence);
}

// Checks who started the job, where its ranks meet, and which rank this is: "1 of 2".
void expect_job(const Job& job, Launcher launcher, RendezvousKind kind, const std::string& address,
                const std::string& rank_of_size) {
  EXPECT_EQ(job.launcher, launcher);
  EXPECT_EQ(job.rendezvous_kind, kind);
  EXPECT_EQ(fmt::format("{}:{}", job.rendezvous.host, job.rendezvous.port), address);
  EXPECT_EQ(fmt::format("{} of {}", job.rank, job.size), rank_of_size);
}

TEST(ResolveJob, WithoutALauncherIsAJobOfOneRank) {
  const Job job = resolve({}, {});
  expect_job(job, Launcher::none, RendezvousKind::none, ":0", "0 of 1");
  EXPECT_TRUE(job.shared_memory);
}

TEST(ResolveJob, ReadsStrettoRun) {
  const Job job = resolve({}, stretto_run());
  expect_job(job, Launcher::stretto_run, RendezvousKind::launcher_store, "127.0.0.1:4242",
             "3 of 4");
  EXPECT_EQ(job.key->hexadecimal(), kKey);
  expect_contains(job.sources.text(), "rank 3 from STRETTO_RANK\n");
  expect_lacks(job.sources.text(), kKey);
}

TEST(ResolveJob, ReadsTorchrun) {
  const Job job = resolve({}, torchrun());
  expect_job(job, Launcher::torchrun, RendezvousKind::torch_store, "node0:29500", "1 of 2");
  EXPECT_FALSE(job.key.has_value());
  EXPECT_EQ(job.store_prefix, "stretto/digits/");
  EXPECT_EQ(resolve({}, with(torchrun(), {{"STRETTO_JOB_KEY", kKey}})).key->hexadecimal(), kKey);
  EXPECT_EQ(resolve({}, with(torchrun(), {{"MASTER_ADDR", "fe80::1"}})).rendezvous.host, "fe80::1");
}

TEST(ResolveJob, ReadsOptions) {
  const JoinOptions options{.rank = 1, .size = 2, .rendezvous = "node7:99"};
  const Job job = resolve(options, {{"STRETTO_JOB_KEY", kKey}});
  expect_job(job, Launcher::options, RendezvousKind::launcher_store, "node7:99", "1 of 2");
  expect_contains(job.sources.text(), "rank 1 from option rank\n");
  EXPECT_EQ(resolve({.rank = 0, .size = 1}, {}).size, 1);
  EXPECT_EQ(resolve({.rank = 3, .size = 4}, stretto_run()).launcher, Launcher::stretto_run)
      << "options that only repeat the launcher change nothing";
  EXPECT_EQ(resolve(options, with(torchrun(), {{"STRETTO_JOB_KEY", kKey}})).launcher,
            Launcher::options)
      << "another meeting place does";
}

TEST(ResolveJob, TwoLaunchersThatAgreeAreNoConflict) {
  const Job job = resolve({}, with(stretto_run(), {{"RANK", "3"},
                                                   {"WORLD_SIZE", "4"},
                                                   {"MASTER_ADDR", "elsewhere"},
                                                   {"MASTER_PORT", "29500"}}));
  expect_job(job, Launcher::stretto_run, RendezvousKind::launcher_store, "127.0.0.1:4242",
             "3 of 4");
}

TEST(ResolveJob, NamesBothSidesOfAConflict) {
  expect_invalid({.rank = 2}, stretto_run(), "option rank says 2, but STRETTO_RANK says 3");
  expect_invalid({.size = 2}, stretto_run(), "option size says 2, but STRETTO_SIZE says 4");
  expect_invalid({.rendezvous = "a:1"}, stretto_run(),
                 "option rendezvous says a:1, but STRETTO_RENDEZVOUS says 127.0.0.1:4242");
  expect_invalid({}, with(stretto_run(), {{"RANK", "0"}}), "STRETTO_RANK says 3, but RANK says 0");
  expect_invalid({}, with(stretto_run(), {{"WORLD_SIZE", "8"}}),
                 "STRETTO_SIZE says 4, but WORLD_SIZE says 8");
  expect_invalid({.rank = 0}, torchrun(), "option rank says 0, but RANK says 1");
  expect_invalid({.disable_shared_memory = true}, {{"STRETTO_TRANSPORT", "shm"}},
                 "disable_shared_memory is set, but STRETTO_TRANSPORT says shm");
}

TEST(ResolveJob, SaysWhatIsMissing) {
  expect_invalid({}, without(stretto_run(), "STRETTO_SIZE"),
                 "STRETTO_RANK is set, but nothing says the size");
  expect_invalid({}, without(stretto_run(), "STRETTO_RANK"),
                 "STRETTO_SIZE is set, but nothing says the rank");
  expect_invalid({}, without(stretto_run(), "STRETTO_RENDEZVOUS"), "says where they meet");
  expect_invalid({}, without(stretto_run(), "STRETTO_JOB_KEY"), "STRETTO_JOB_KEY is not set");
  expect_invalid({.rank = 0, .size = 2, .rendezvous = "a:1"}, {}, "STRETTO_JOB_KEY is not set");
  expect_invalid({.rank = 0}, {}, "option rank is set, but nothing says the size");
  expect_invalid({}, without(torchrun(), "MASTER_ADDR"), "MASTER_ADDR is not");
  expect_invalid({}, without(torchrun(), "MASTER_PORT"), "MASTER_PORT is not");
  expect_invalid({}, without(without(torchrun(), "MASTER_ADDR"), "MASTER_PORT"),
                 "MASTER_ADDR is not: nothing says where the ranks meet");
  expect_invalid({}, without(torchrun(), "WORLD_SIZE"), "RANK is set, but nothing says the size");
}

TEST(ResolveJob, RefusesValuesThatMakeNoSense) {
  for (const char* bad : {"three", "3x", "", " 3", "99999999999"}) {
    const Variables variables = with(stretto_run(), {{"STRETTO_RANK", bad}});
    expect_invalid({}, variables, fmt::format("STRETTO_RANK=\"{}\" is not a whole number", bad));
  }
  expect_invalid({}, with(stretto_run(), {{"STRETTO_RANK", "4"}}),
                 "STRETTO_RANK says 4, but STRETTO_SIZE says 4: ranks go from 0 to size - 1");
  expect_invalid({}, with(stretto_run(), {{"STRETTO_RANK", "-1"}}), "STRETTO_RANK says -1");
  expect_invalid({.rank = 0, .size = 0}, {}, "a job has at least one rank");
  expect_invalid({}, with(stretto_run(), {{"STRETTO_RENDEZVOUS", "127.0.0.1"}}),
                 "STRETTO_RENDEZVOUS: \"127.0.0.1\" is no address");
  expect_invalid({}, with(torchrun(), {{"MASTER_PORT", "http"}}), "MASTER_PORT=\"http\"");
  expect_invalid({}, with(torchrun(), {{"MASTER_PORT", "70000"}}), "is no address");
  expect_invalid({}, with(stretto_run(), {{"STRETTO_JOB_KEY", "secret"}}),
                 "STRETTO_JOB_KEY: a job key has 64 hexadecimal digits");
  expect_invalid({}, {{"STRETTO_TRANSPORT", "rdma"}}, "is not one of auto, shm, tcp");
  expect_invalid({}, {{"STRETTO_PORTS", "31-30"}}, "STRETTO_PORTS: \"31-30\" is no range of ports");
}

TEST(ResolveJob, SaysWhereToListen) {
  EXPECT_EQ(resolve({}, {}).ports, bootstrap::PortRange());
  const Job job =
      resolve({}, {{"STRETTO_NETWORK", "eth1,10.0.0.0/8"}, {"STRETTO_PORTS", "29600-29631"}});
  EXPECT_EQ(job.networks, (std::vector<std::string>{"eth1", "10.0.0.0/8"}));
  EXPECT_EQ(job.ports, (bootstrap::PortRange{29600, 29631}));
  EXPECT_EQ(job.streams, 2);
}

TEST(ResolveJob, SaysHowToUseSockets) {
  EXPECT_EQ(resolve({}, {}).streams, 1);
  EXPECT_EQ(resolve({}, {}).congestion_control, "");
  const Job job = resolve({}, {{"STRETTO_STREAMS", "4"},
                               {"STRETTO_NETWORK", "eth0,eth1"},
                               {"STRETTO_CONGESTION_CONTROL", "reno"}});
  EXPECT_EQ(job.streams, 4);
  EXPECT_EQ(job.congestion_control, "reno");
  expect_invalid({}, {{"STRETTO_STREAMS", "0"}}, "STRETTO_STREAMS says 0: want 1 to 16");
}

TEST(ResolveJob, EncryptsWithAKeyThatHasNotTravelled) {
  const Variables tls = {{"STRETTO_ENCRYPTION", "tls"}};
  const Variables key = {{"STRETTO_JOB_KEY", std::string(64, '7')}};
  EXPECT_FALSE(resolve({}, stretto_run()).encrypted);
  EXPECT_TRUE(resolve({}, with(stretto_run(), tls)).encrypted);
  EXPECT_TRUE(resolve({.encryption = "tls"}, stretto_run()).encrypted);
  EXPECT_TRUE(resolve({.rendezvous = "file:///shared/job"},
                      with(without(without(by_hand(), "MASTER_ADDR"), "MASTER_PORT"), tls))
                  .encrypted);
  EXPECT_TRUE(resolve({}, with(with(torchrun(), tls), key)).encrypted);
  EXPECT_FALSE(resolve({}, with(torchrun(), {{"STRETTO_ENCRYPTION", "off"}})).encrypted);
  expect_invalid({}, with(torchrun(), tls),
                 "STRETTO_ENCRYPTION wants encryption, but STRETTO_JOB_KEY is not set");
  expect_invalid({.encryption = "tls"}, by_hand(), "option encryption wants encryption, but");
  expect_invalid({.encryption = "off"}, with(stretto_run(), tls), "STRETTO_ENCRYPTION says tls");
  expect_invalid({}, with(stretto_run(), {{"STRETTO_ENCRYPTION", "ssl"}}),
                 "is not one of off, tls");
  expect_invalid({.transport = "ucx"}, with(stretto_run(), tls), "but the transport is ucx");
}

TEST(ResolveJob, ReadsVariablesThatNoAgentStandsBehind) {
  const Job job = resolve({}, by_hand());
  expect_job(job, Launcher::variables, RendezvousKind::rank_0_store, "node0:29500", "1 of 2");
  EXPECT_FALSE(job.key.has_value());
  expect_contains(job.sources.text(), "rendezvous node0:29500 from MASTER_ADDR and MASTER_PORT\n");
  expect_contains(job.sources.text(), "job key from the store");
  EXPECT_EQ(resolve({}, with(by_hand(), {{"STRETTO_JOB_KEY", kKey}})).key->hexadecimal(), kKey);
  // torchrun itself says whether its agent has a store.
  const auto meeting = [](const Variables& changes) {
    return resolve({}, with(by_hand(), changes)).rendezvous_kind;
  };
  EXPECT_EQ(meeting({{"TORCHELASTIC_USE_AGENT_STORE", "True"}}), RendezvousKind::torch_store);
  EXPECT_EQ(meeting({{"TORCHELASTIC_RUN_ID", "x"}}), RendezvousKind::torch_store);
  EXPECT_EQ(meeting({{"TORCHELASTIC_RUN_ID", "x"}, {"TORCHELASTIC_USE_AGENT_STORE", "False"}}),
            RendezvousKind::rank_0_store);
}

TEST(ResolveJob, ReadsTheKindsOfMeetingPlaces) {
  JoinOptions options{.rank = 1, .size = 2, .rendezvous = "tcp://[::1]:4000"};
  const Job tcp = resolve(options, {});
  expect_job(tcp, Launcher::options, RendezvousKind::rank_0_store, "::1:4000", "1 of 2");
  options.rendezvous = "file:///shared/job 7";
  const Job file = resolve(options, {});
  expect_job(file, Launcher::options, RendezvousKind::file, ":0", "1 of 2");
  EXPECT_EQ(file.rendezvous_path, "/shared/job 7");
  EXPECT_FALSE(file.makes_folder);
  for (const char* bad : {"file://relative", "file:///", "file:///folder/"}) {
    options.rendezvous = bad;
    expect_invalid(options, {}, fmt::format("option rendezvous: \"{}\" names no file", bad));
  }
  options.rendezvous = "env://";
  expect_invalid(options, {}, "want host:port, tcp://host:port or file:///path");
  options.rendezvous = "tcp://node0";
  expect_invalid(options, {}, "\"node0\" is no address");
}

TEST(ResolveJob, ReadsOpenMpi) {
  const Job job = resolve({}, open_mpi());
  expect_job(job, Launcher::mpi, RendezvousKind::file, ":0", "1 of 4");
  EXPECT_TRUE(job.makes_folder);
  EXPECT_EQ(job.rendezvous_path,
            fmt::format("/scratch/stretto-{}/prterun-node0-28821@1", ::geteuid()));
  expect_contains(job.sources.text(), "rank 1 from OMPI_COMM_WORLD_RANK\n");
  expect_contains(job.sources.text(), "from PMIX_NAMESPACE\n");
  EXPECT_EQ(resolve({}, with(open_mpi(), {{"PMIX_NAMESPACE", "../../etc/x"}})).rendezvous_path,
            fmt::format("/scratch/stretto-{}/______etc_x", ::geteuid()));
  const Variables several_hosts = with(open_mpi(), {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  expect_invalid({}, several_hosts,
                 "on several hosts: say where the ranks meet with "
                 "STRETTO_RENDEZVOUS=tcp://HOST:PORT");
  const Variables told = with(several_hosts, {{"STRETTO_RENDEZVOUS", "tcp://node0:4000"}});
  EXPECT_EQ(resolve({}, told).rendezvous_kind, RendezvousKind::rank_0_store);
  const Variables master = with(several_hosts, {{"MASTER_ADDR", "n"}, {"MASTER_PORT", "7"}});
  EXPECT_EQ(resolve({}, master).rendezvous.host, "n");
}

TEST(ResolveJob, ReadsMpich) {
  const Variables mpich{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
  expect_invalid({}, mpich, "does not say by what name its ranks could find each other: say where");
  const Job job = resolve({}, with(mpich, {{"STRETTO_RENDEZVOUS", "tcp://node0:4000"}}));
  expect_job(job, Launcher::mpi, RendezvousKind::rank_0_store, "node0:4000", "1 of 2");
}

TEST(ResolveJob, ReadsSlurm) {
  const Job job = resolve({}, slurm());
  const int port = 15000 + (123456 + 2 * 1009) % 15000;
  expect_job(job, Launcher::slurm, RendezvousKind::rank_0_store, fmt::format("node07:{}", port),
             "5 of 8");
  expect_contains(job.sources.text(), "size 8 from SLURM_NTASKS\n");
  const Variables part =
      with(slurm(), {{"SLURM_STEP_NUM_TASKS", "6"}, {"SLURM_STEP_NODELIST", "node12"}});
  EXPECT_EQ(resolve({}, part).size, 6);
  EXPECT_EQ(resolve({}, part).rendezvous.host, "node12");
  EXPECT_EQ(resolve({}, without(slurm(), "SLURM_STEP_ID")).size, 1)
      << "what runs in a batch script without srun is no task";
  EXPECT_EQ(resolve({}, with(slurm(), {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}})).launcher,
            Launcher::slurm)
      << "srun started an MPI program";
  expect_invalid({}, with(slurm(), {{"PMIX_RANK", "4"}}),
                 "SLURM_PROCID says 5, but PMIX_RANK says 4");
  expect_invalid({}, without(slurm(), "SLURM_JOB_NODELIST"), "SLURM_STEP_NODELIST is not set");
  expect_invalid({}, with(slurm(), {{"SLURM_JOB_NODELIST", "node[1"}}),
                 "SLURM_JOB_NODELIST: \"node[1\" is no list of hosts");
}

TEST(ResolveJob, ALauncherInsideAnotherCounts) {
  EXPECT_EQ(resolve({}, with(stretto_run(), slurm())).rank, 3);
  EXPECT_EQ(resolve({}, with(torchrun(), slurm())).rendezvous_kind, RendezvousKind::torch_store);
  EXPECT_EQ(resolve({}, with(open_mpi(), slurm())).rendezvous_kind, RendezvousKind::file);
  const Variables mpi_of_one{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}};
  EXPECT_EQ(resolve({}, with(stretto_run(), mpi_of_one)).rank, 3);
  EXPECT_EQ(resolve({}, mpi_of_one).size, 1);
  expect_invalid({}, with(stretto_run(), {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}),
                 "STRETTO_RANK says 3, but PMI_RANK says 2: unset one of them");
  expect_invalid({}, with(by_hand(), open_mpi()), "WORLD_SIZE says 2, but OMPI_COMM_WORLD_SIZE");
}

TEST(ResolveJob, AProcessThatWasStartedAgainIsRefused) {
  const Variables restarted = with(stretto_run(), {{"STRETTO_RESTART_COUNT", "2"}});
  const auto job = resolve_job({}, FakeEnvironment(restarted));
  EXPECT_EQ(job.status().code(), StatusCode::invalid_argument);
  expect_contains(job.status().message(), "(STRETTO_RESTART_COUNT=2)");
  expect_contains(job.status().message(), "stretto::ElasticJob");
  const Variables alone = with(restarted, {{"STRETTO_RANK", "0"}, {"STRETTO_SIZE", "1"}});
  EXPECT_TRUE(resolve_job({}, FakeEnvironment(alone)).ok()) << "it meets nobody";
  const auto store = std::make_shared<bootstrap::MemoryStore>();
  EXPECT_TRUE(given_job(store, Rank(3), 4, {}, FakeEnvironment(restarted)).ok());
}

TEST(GivenJob, TakesTheKeyThatIsSet) {
  const auto given = [](int size, const Variables& variables) {
    return given_job(std::make_shared<bootstrap::MemoryStore>(), Rank(0), size, {},
                     FakeEnvironment(variables));
  };
  EXPECT_EQ(given(2, {{"STRETTO_JOB_KEY", kKey}}).or_throw().key->hexadecimal(), kKey);
  EXPECT_FALSE(given(2, {}).or_throw().key.has_value());
  const Variables mistaken = {{"STRETTO_JOB_KEY", "secret"}};
  expect_failure(given(2, mistaken).status(), StatusCode::invalid_argument,
                 "STRETTO_JOB_KEY: a job key has 64 hexadecimal digits");
  EXPECT_TRUE(given(1, mistaken).ok()) << "it meets nobody";
}

TEST(ResolveJob, ChoosesTheTransport) {
  EXPECT_TRUE(resolve({}, {{"STRETTO_TRANSPORT", "auto"}}).shared_memory);
  EXPECT_TRUE(resolve({}, {{"STRETTO_TRANSPORT", "shm"}}).shared_memory);
  EXPECT_FALSE(resolve({}, {{"STRETTO_TRANSPORT", "tcp"}}).shared_memory);
  EXPECT_FALSE(resolve({.transport = "tcp"}, {}).shared_memory);
  EXPECT_EQ(resolve({.transport = "ucx"}, {{"STRETTO_TRANSPORT", "ucx"}}).engine, "ucx");
  EXPECT_EQ(resolve({}, {{"STRETTO_TRANSPORT", "mpi"}}).engine, "mpi");
  expect_invalid({.transport = "ucx"}, {{"STRETTO_TRANSPORT", "tcp"}}, "option transport");
  EXPECT_FALSE(resolve({.disable_shared_memory = true}, {}).shared_memory);
}

TEST(ResolveJob, TheFileOfAPlugInIsThatOfTheTransportFirst) {
  const auto file = [](const std::string& transport, const std::string& backend,
                       const std::string& name) {
    return plugin_file(
        resolve({.transport = transport, .backend = backend}, {{"STRETTO_PLUGIN", "/its/file"}}),
        name);
  };
  EXPECT_EQ(file("ucx", "mpi", "ucx"), "/its/file");
  EXPECT_EQ(file("ucx", "mpi", "mpi"), "");
  EXPECT_EQ(file("mpi", "mpi", "mpi"), "/its/file");
  EXPECT_EQ(file("auto", "mpi", "mpi"), "/its/file");
  EXPECT_EQ(file("auto", "mpi", "ucx"), "");
}

TEST(ResolveJob, SaysHowLongTheNetworkMayBeSilent) {
  using std::chrono::milliseconds;
  EXPECT_EQ(resolve({}, {}).network_timeout, kNetworkTimeout);
  EXPECT_EQ(resolve({}, {{"STRETTO_NETWORK_TIMEOUT", "25"}}).network_timeout, milliseconds(25'000));
  EXPECT_EQ(resolve({}, {{"STRETTO_NETWORK_TIMEOUT", "0"}}).network_timeout, Duration::zero());
  EXPECT_EQ(resolve({.network_timeout = milliseconds(1500)}, {}).network_timeout,
            milliseconds(1500));
  EXPECT_EQ(resolve({.network_timeout = Duration::max()}, {}).network_timeout, Duration::max());
  expect_invalid({.network_timeout = milliseconds(1500)}, {{"STRETTO_NETWORK_TIMEOUT", "2"}},
                 "network_timeout says 1.5, but STRETTO_NETWORK_TIMEOUT says 2");
  expect_invalid({.network_timeout = milliseconds(500)}, {}, "want 0 or at least 1, in seconds");
  EXPECT_EQ(resolve({}, {{"STRETTO_NETWORK_TIMEOUT", "2.5"}}).network_timeout, milliseconds(2500));
  for (const auto& [value, fault] : {std::pair("-1", "\"-1\" is negative: want seconds, such as"),
                                     std::pair("10s", "\"10s\" is not a number: want seconds"),
                                     std::pair("2,5", "\"2,5\" is not a number: want seconds"),
                                     std::pair("nan", "\"nan\" is not a number: want seconds"),
                                     std::pair("1e99", "\"1e99\" is too large: want seconds"),
                                     std::pair("0.5", " says 0.5: want 0 or at least 1")}) {
    expect_invalid({}, {{"STRETTO_NETWORK_TIMEOUT", value}}, fault);
    expect_invalid({}, {{"STRETTO_NETWORK_TIMEOUT", value}}, "STRETTO_NETWORK_TIMEOUT");
  }
}

std::string failure_of_join(JoinOptions options, const Variables& variables) {
  const FakeEnvironment environment(variables);
  options.environment = &environment;
  return testing::message_of<InvalidArgument>([&] { (void)join(options); });
}

TEST(Join, ATimeThatMakesNoSenseIsNamedByItsSource) {
  using std::chrono::milliseconds;
  EXPECT_EQ(failure_of_join({}, {{"STRETTO_WARN_AFTER", "0.5"}}), "");
  expect_contains(failure_of_join({}, {{"STRETTO_WARN_AFTER", "-3"}}),
                  "STRETTO_WARN_AFTER=\"-3\" is negative");
  const JoinOptions negative[] = {{.join_timeout = milliseconds(-1500)},
                                  {.timeout = milliseconds(-1500)},
                                  {.warn_after = milliseconds(-1500)}};
  const char* const names[] = {"join_timeout", "timeout", "warn_after"};
  for (int i = 0; i < 3; ++i) {
    expect_contains(failure_of_join(negative[i], {}),
                    std::string("option ") + names[i] + " says -1.5 s, which is negative");
  }
}

}  // namespace
}  // namespace stretto::job

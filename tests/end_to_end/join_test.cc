// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// Every way to start a job that one machine can try, with real processes and launchers.

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <sstream>

#include "stretto/job/settings.h"
#include "tests/end_to_end/tool.h"
#include "tests/support/expect_contains.h"
#include "tests/support/free_port.h"

namespace stretto {
namespace {

using testing::Arguments;
using testing::Ended;
using testing::Process;
using testing::Variables;

const std::string kRank = STRETTO_BIN_DIR "/join_rank_program";

std::string tcp_place() { return fmt::format("tcp://127.0.0.1:{}", free_port()); }

std::string on_path(const std::string& program) {
  std::istringstream folders(std::getenv("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (std::filesystem::exists(folder + "/" + program)) return folder + "/" + program;
  }
  return "";
}

void expect_joined(const std::string& output, int size) {
  for (int rank = 0; rank < size; ++rank) {
    expect_contains(output,
                    fmt::format("rank {} of {}: sum {}\n", rank, size, size * (size - 1) / 2));
  }
}

// Starts each rank by itself, the last one first, with its own variables.
std::vector<Ended> start_ranks(int size, const std::function<Variables(int rank)>& variables) {
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = size - 1; rank >= 0; --rank) {
    ranks.push_back(std::make_unique<Process>(Arguments{kRank}, variables(rank)));
  }
  std::vector<Ended> ended;
  for (auto& rank : ranks) ended.insert(ended.begin(), testing::end_of(*rank));
  ranks.clear();
  return ended;
}

void expect_all_joined(const std::vector<Ended>& ranks) {
  std::string output;
  for (const Ended& ended : ranks) {
    EXPECT_EQ(ended.status, 0) << ended.errors;
    output += ended.output;
  }
  expect_joined(output, static_cast<int>(ranks.size()));
}

void expect_ranks_join(int size, const std::function<Variables(int rank)>& variables) {
  expect_all_joined(start_ranks(size, variables));
}

using Change = std::function<void(int rank, Variables& variables)>;

// Stretto's own variables for each rank, with a change.
std::function<Variables(int rank)> at(
    const std::string& place, int size, const Change& change = [](int, Variables&) {}) {
  return [=](int rank) {
    Variables variables{{"STRETTO_RANK", std::to_string(rank)},
                        {"STRETTO_SIZE", std::to_string(size)},
                        {"STRETTO_RENDEZVOUS", place}};
    change(rank, variables);
    return variables;
  };
}

class Join : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
};

TEST_F(Join, AtAStoreThatRankZeroHosts) { expect_ranks_join(3, at(tcp_place(), 3)); }

TEST_F(Join, InAFile) {
  const std::string path = folder_ / "job";
  expect_ranks_join(3, at("file://" + path, 3));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(Join, ByTheVariablesOfPyTorch) {
  const std::string port = std::to_string(free_port());
  expect_ranks_join(3, [&](int rank) {
    return Variables{{"RANK", std::to_string(rank)},
                     {"WORLD_SIZE", "3"},
                     {"MASTER_ADDR", "127.0.0.1"},
                     {"MASTER_PORT", port}};
  });
}

TEST_F(Join, BySlurmsVariables) {
  // Gives jobs of this test that run at the same time different ports.
  const std::string job = std::to_string(::getpid());
  expect_ranks_join(2, [&](int rank) {
    return Variables{{"SLURM_PROCID", std::to_string(rank)},
                     {"SLURM_NTASKS", "2"},
                     {"SLURM_JOB_ID", job},
                     {"SLURM_STEP_ID", "0"},
                     {"SLURM_STEP_NODELIST", "localhost"}};
  });
}

// All variables that there are, with values that make no difference to a job on this host.
Variables variables_of_all_kinds() {
  return {{"STRETTO_ALGORITHM", "recursive_doubling"},
          {"STRETTO_BACKEND", "stretto"},
          {"STRETTO_CONGESTION_CONTROL", "reno"},
          {"STRETTO_CUDA_DRIVER", "/nowhere/libcuda.so"},
          {"STRETTO_CUDA_KERNELS", "/nowhere/kernels.so"},
          {"STRETTO_DEVICE", "7"},
          {"STRETTO_ENCRYPTION", "tls"},
          {"STRETTO_FLIGHT_RECORD", "/nowhere/rank_"},
          {"STRETTO_JOB_KEY", std::string(64, 'a')},
          {"STRETTO_LINK_CACHE", "off"},
          {"STRETTO_LOCAL_RANK", "1"},
          {"STRETTO_LOCAL_SIZE", "2"},
          {"STRETTO_LOG", "info"},
          {"STRETTO_MEMORY_CHECK", "off"},
          {"STRETTO_NCCL_LIBRARY", "/nowhere/libnccl.so"},
          {"STRETTO_NETWORK", "lo"},
          {"STRETTO_NETWORK_TIMEOUT", "20"},
          {"STRETTO_PLUGIN", "/nowhere/plugin.so"},
          {"STRETTO_PORTS", "20000-60000"},
          {"STRETTO_PROGRESS_THREAD", "always"},
          {"STRETTO_SINGLE_COPY", "off"},
          {"STRETTO_STATUS_FD", "1000"},
          {"STRETTO_STREAMS", "2"},
          {"STRETTO_TRANSPORT", "tcp"},
          {"STRETTO_VERIFY", "always"},
          {"STRETTO_WARN_AFTER", "30"}};
}

TEST_F(Join, PrintsEachValueWithItsSource) {
  const std::string place = tcp_place();
  const Variables others = variables_of_all_kinds();
  const auto ended = start_ranks(2, at(place, 2, [&](int, Variables& variables) {
                                   variables.insert(others.begin(), others.end());
                                 }));
  EXPECT_EQ(ended[1].status, 0) << ended[1].errors;
  for (const std::string_view variable : job::variables()) {
    if (variable == "STRETTO_RESTART_COUNT") continue;  // A rank that has it cannot join.
    const auto set = others.find(std::string(variable));
    const std::string value = variable == "STRETTO_RANK"         ? "1"
                              : variable == "STRETTO_SIZE"       ? "2"
                              : variable == "STRETTO_RENDEZVOUS" ? place
                              : variable == "STRETTO_JOB_KEY"    ? "key"
                              : set == others.end()              ? "a value for this test"
                                                                 : set->second;
    expect_contains(ended[1].errors, fmt::format(" {} from {}\n", value, variable));
  }
  expect_lacks(ended[1].errors, std::string(64, 'a'));
  expect_contains(ended[1].errors, "stretto [rank 1] info: by default: timeout in seconds 1800\n");
}

TEST_F(Join, PrintsWhatHoldsByDefault) {
  const auto ended = start_ranks(2, at(tcp_place(), 2, [](int, Variables& variables) {
                                   variables["STRETTO_LOG"] = "info";
                                   variables["STRETTO_TRANSPORT"] = "tcp";
                                 }));
  expect_contains(ended[1].errors, "stretto [rank 1] info: job key from the store: rank 0 makes");
  expect_contains(ended[1].errors,
                  "stretto [rank 1] info: by default: backend stretto, encryption off, network "
                  "towards the store, streams 1, congestion control the system's, ports as the "
                  "system chooses, network timeout in seconds 10, timeout in seconds 1800, "
                  "warnings after seconds 60, progress thread automatic, memory check on, single "
                  "copy automatic, proofs automatic, algorithm as measured\n");
  expect_contains(ended[1].errors, "join_timeout in seconds 20 from option join_timeout\n");
  // It also tells by which networks ranks reach each other.
  expect_contains(ended[0].errors,
                  "other ranks reach this one at 127.0.0.1 (lo): from it leads its route to the "
                  "store\n");
  expect_contains(ended[1].errors, "): tcp from 127.0.0.1 (lo) to 127.0.0.1\n");
}

// Each rank must say `sentence`, and none may say that a rank never came.
void expect_all_told(const std::vector<Ended>& ranks, const std::string& sentence) {
  for (const Ended& ended : ranks) {
    EXPECT_EQ(ended.status, 1);
    expect_contains(ended.errors, sentence);
    expect_lacks(ended.errors, "never came");
  }
}

TEST_F(Join, AMistakeOfOneRankIsToldToAll) {
  for (const std::string& place : {tcp_place(), "file://" + (folder_ / "job")}) {
    const auto mistake = [](int rank, Variables& variables) {
      if (rank == 1) variables["STRETTO_ALGORITHM"] = "rings";
    };
    expect_all_told(start_ranks(3, at(place, 3, mistake)),
                    "STRETTO_ALGORITHM=rings is no algorithm; there are: ring, direct, ");
  }
}

TEST_F(Join, AWrongKeyOfOneRankIsToldToAll) {
  const auto ended = start_ranks(3, at(tcp_place(), 3, [](int rank, Variables& variables) {
                                   variables["STRETTO_JOB_KEY"] =
                                       std::string(64, rank == 2 ? '2' : '1');
                                 }));
  expect_all_told({ended[0], ended[1]},
                  "a peer that calls itself rank 2 does not hold this job's key");
  expect_all_told({ended[2]}, "rank 0 refuses the job key of this rank 2");
}

TEST_F(Join, TheDeathOfOneRankIsToldToAll) {
  for (const std::string& place : {tcp_place(), "file://" + (folder_ / "job")}) {
    std::vector<std::unique_ptr<Process>> ranks;
    // The fourth never comes.
    for (int rank = 0; rank < 3; ++rank) {
      const auto logs = [](int, Variables& variables) { variables["STRETTO_LOG"] = "info"; };
      ranks.push_back(std::make_unique<Process>(Arguments{kRank}, at(place, 4, logs)(rank)));
    }
    for (auto& rank : ranks) ASSERT_TRUE(rank->errors().wait_for("this rank has come to"));
    ::kill(ranks[1]->pid(), SIGKILL);
    const std::string sentence =
        fmt::format("pid {}) ended while the job was starting", ranks[1]->pid());
    expect_all_told({testing::end_of(*ranks[0]), testing::end_of(*ranks[2])}, sentence);
  }
}

TEST_F(Join, WithoutThreadsIsASentenceOnAllRanks) {
  // Rank 0 needs a thread to accept the other rank, rank 1 needs one for its engine.
  for (const auto& [barred, place] :
       {std::pair(0, "file://" + (folder_ / "job")), std::pair(1, tcp_place())}) {
    const auto forbid = [barred = barred](int rank, Variables& variables) {
      if (rank == barred) variables["TEST_FORBID"] = "threads";
    };
    expect_all_told(start_ranks(2, at(place, 2, forbid)),
                    "could not be started: Resource temporarily unavailable");
  }
}

TEST_F(Join, WithFewDescriptorsAllJoinOrAllAreToldWhy) {
  int refused = 0;
  for (int left = 3; left <= 7; ++left) {
    const auto limit = [&](int rank, Variables& variables) {
      if (rank == 1) variables["TEST_DESCRIPTORS"] = std::to_string(left);
    };
    const auto ended = start_ranks(3, at(tcp_place(), 3, limit));
    if (ended[1].status == 0) {
      expect_all_joined(ended);
      continue;
    }
    ++refused;
    expect_contains(ended[1].errors, "raise `ulimit -n`");
    expect_all_told({ended[0], ended[2]}, "rank 1 (");
  }
  EXPECT_GT(refused, 0) << "as the fewest are too few";
}

TEST_F(Join, WithoutMemoryFilesByTcp) {
  expect_ranks_join(3, at(tcp_place(), 3, [](int, Variables& variables) {
                      variables["STRETTO_TRANSPORT"] = "tcp";
                      variables["TEST_FORBID"] = "memfd";
                    }));
}

void encrypt(Variables& variables) {
  variables["STRETTO_TRANSPORT"] = "tcp";
  variables["STRETTO_ENCRYPTION"] = "tls";
  variables["STRETTO_JOB_KEY"] = std::string(64, '7');
}

TEST_F(Join, Encrypted) {
  const std::string place = tcp_place();
  for (const char* streams : {"1", "3"}) {
    expect_ranks_join(4, at(place, 4, [&](int, Variables& variables) {
                        encrypt(variables);
                        variables["STRETTO_STREAMS"] = streams;
                      }));
  }
  expect_ranks_join(2, at("file://" + (folder_ / "job"), 2, [](int, Variables& variables) {
                      encrypt(variables);
                      variables.erase("STRETTO_JOB_KEY");
                    }));
}

TEST_F(Join, EncryptedByAllOrNotAtAll) {
  const auto ended = start_ranks(3, at(tcp_place(), 3, [](int rank, Variables& variables) {
                                   encrypt(variables);
                                   if (rank == 1) variables["STRETTO_ENCRYPTION"] = "off";
                                 }));
  expect_all_told(ended, "STRETTO_ENCRYPTION must be the same on all ranks");
  // Either end may find out first.
  expect_contains(ended[0].errors, "offers to be connected by");
}

TEST_F(Join, UnderTorchrun) {
  const std::string usual = STRETTO_SOURCE_DIR "/build/venv/bin/torchrun";
  const std::string torchrun = std::filesystem::exists(usual) ? usual : on_path("torchrun");
  if (torchrun.empty()) GTEST_SKIP() << "torchrun is neither in build/venv nor on PATH";
  const Arguments command{torchrun, "--no-python", "--nproc-per-node", "2"};
  // Ranks use the store of torchrun's agent or, without it, meet by themselves.
  for (const char* shares : {"0", "1"}) {
    Process job(command + Arguments{"--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
                                    "--rdzv-id", "join_test", kRank},
                {{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", shares}, {"STRETTO_LOG", "info"}});
    const Ended ended = testing::end_of(job);
    EXPECT_EQ(ended.status, 0) << ended.errors;
    expect_joined(ended.output, 2);
    expect_contains(ended.errors, "from MASTER_ADDR and MASTER_PORT");
  }
}

class Mpirun : public Join {
 protected:
  void SetUp() override {
    if (on_path("mpirun").empty()) GTEST_SKIP() << "mpirun is not on PATH";
    Process version({"mpirun", "--version"}, {});
    is_open_mpi_ = testing::end_of(version).output.find("Open MPI") != std::string::npos;
  }
  Ended run_ranks(Variables variables) {
    variables.merge(testing::mpirun_variables(folder_));
    Process job({"mpirun", "-n", "3", kRank}, variables);
    return testing::end_of(job);
  }

  bool is_open_mpi_ = false;
};

TEST_F(Mpirun, NeedsNoConfigurationOnOneHostOrSaysThatItDoes) {
  const Ended ended = run_ranks({});
  if (!is_open_mpi_) {
    expect_contains(ended.errors,
                    "say where the ranks meet with STRETTO_RENDEZVOUS=tcp://HOST:PORT");
    return;
  }
  EXPECT_EQ(ended.status, 0) << ended.errors;
  expect_joined(ended.output, 3);
}

TEST_F(Mpirun, MeetsWhereItIsTold) {
  const Ended ended = run_ranks({{"STRETTO_RENDEZVOUS", tcp_place()}});
  EXPECT_EQ(ended.status, 0) << ended.errors;
  expect_joined(ended.output, 3);
}

}  // namespace
}  // namespace stretto

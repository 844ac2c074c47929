// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/rank_and_size.h"

#include "stretto/job/slurm.h"

namespace stretto::job {
namespace {

Result<RankAndSize> read_rank_and_size(const Environment& environment, Launcher launcher,
                                       const std::string& rank_variable,
                                       const std::string& size_variable) {
  STRETTO_ASSIGN_OR_RETURN(const auto rank, read_number(environment, rank_variable));
  STRETTO_ASSIGN_OR_RETURN(const auto size, read_number(environment, size_variable));
  RankAndSize own{.launcher = launcher, .rank = rank, .size = size};
  if (own.empty()) own.launcher = Launcher::none;
  return own;
}

// The launcher is the first one that says anything.
Result<RankAndSize> agree(const RankAndSize& first, const RankAndSize& second) {
  STRETTO_ASSIGN_OR_RETURN(const auto rank, agree(first.rank, second.rank));
  STRETTO_ASSIGN_OR_RETURN(const auto size, agree(first.size, second.size));
  return RankAndSize{
      .launcher = first.empty() ? second.launcher : first.launcher, .rank = rank, .size = size};
}

// Whether the ranks can meet in the store of torchrun's agent. PyTorch asks the same.
bool agent_hosts_a_store(const Environment& environment) {
  const auto says = environment.get("TORCHELASTIC_USE_AGENT_STORE");
  return says ? *says == "True" : environment.get("TORCHELASTIC_RUN_ID").has_value();
}

Result<RankAndSize> read_mpi(const Environment& environment) {
  Result<RankAndSize> open_mpi = read_rank_and_size(environment, Launcher::mpi,
                                                    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  if (!open_mpi.ok() || !open_mpi->empty()) return open_mpi;
  return read_rank_and_size(environment, Launcher::mpi, "PMI_RANK", "PMI_SIZE");
}

Result<RankAndSize> read_slurm(const Environment& environment) {
  if (!in_slurm_step(environment)) return RankAndSize{};
  const bool has_step_size = environment.get("SLURM_STEP_NUM_TASKS").has_value();
  return read_rank_and_size(environment, Launcher::slurm, "SLURM_PROCID",
                            has_step_size ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
}

// Combines what the launchers say, the innermost first.
Result<RankAndSize> read_launchers(const Environment& environment) {
  STRETTO_ASSIGN_OR_RETURN(
      const RankAndSize stretto_run,
      read_rank_and_size(environment, Launcher::stretto_run, "STRETTO_RANK", "STRETTO_SIZE"));
  const Launcher sets_rank =
      agent_hosts_a_store(environment) ? Launcher::torchrun : Launcher::variables;
  STRETTO_ASSIGN_OR_RETURN(const RankAndSize torch,
                           read_rank_and_size(environment, sets_rank, "RANK", "WORLD_SIZE"));
  STRETTO_ASSIGN_OR_RETURN(RankAndSize inner, agree(stretto_run, torch));

  STRETTO_ASSIGN_OR_RETURN(const RankAndSize mpi, read_mpi(environment));
  const bool job_of_one = mpi.size && mpi.size->value == 1;
  if (inner.empty() || !job_of_one) {
    STRETTO_ASSIGN_OR_RETURN(inner, agree(inner, mpi));
  }

  STRETTO_ASSIGN_OR_RETURN(const RankAndSize slurm, read_slurm(environment));
  // srun can also start MPI programs: both then speak of the same tasks, and only Slurm knows the
  // hosts.
  const bool same_tasks = inner.launcher == Launcher::mpi &&
                          !environment.get("OMPI_UNIVERSE_SIZE") && inner.size && slurm.size &&
                          inner.size->value == slurm.size->value;
  if (slurm.empty() || (!inner.empty() && !same_tasks)) return inner;
  STRETTO_ASSIGN_OR_RETURN(const auto pmix_rank, read_number(environment, "PMIX_RANK"));
  STRETTO_ASSIGN_OR_RETURN(const RankAndSize tasks, agree(slurm, RankAndSize{.rank = pmix_rank}));
  return agree(tasks, inner);
}

Status check(const RankAndSize& own) {
  if (own.empty()) return {};
  if (own.rank.has_value() != own.size.has_value()) {
    const auto& given = own.rank ? own.rank : own.size;
    return status_of(StatusCode::invalid_argument,
                     "{} is set, but nothing says the {}: set both, or start the program with "
                     "stretto run or torchrun",
                     given->source, own.rank ? "size of the job" : "rank of this process");
  }
  if (own.size->value < 1) {
    return status_of(StatusCode::invalid_argument, "{} says {}: a job has at least one rank",
                     own.size->source, own.size->value);
  }
  if (own.rank->value < 0 || own.rank->value >= own.size->value) {
    return status_of(StatusCode::invalid_argument,
                     "{} says {}, but {} says {}: ranks go from 0 to size - 1", own.rank->source,
                     own.rank->value, own.size->source, own.size->value);
  }
  return {};
}

}  // namespace

Result<RankAndSize> resolve_rank_and_size(const JoinOptions& options,
                                          const Environment& environment) {
  RankAndSize from_options{.launcher = Launcher::options};
  if (options.rank) from_options.rank = {*options.rank, "option rank"};
  if (options.size) from_options.size = {*options.size, "option size"};
  STRETTO_ASSIGN_OR_RETURN(const RankAndSize launched, read_launchers(environment));
  STRETTO_ASSIGN_OR_RETURN(RankAndSize own, agree(from_options, launched));
  STRETTO_RETURN_IF_ERROR(check(own));
  // Options that only repeat what a launcher said do not replace the launcher; another meeting
  // place does.
  if (!launched.empty()) own.launcher = launched.launcher;
  if (!options.rendezvous.empty()) own.launcher = Launcher::options;
  return own;
}

}  // namespace stretto::job

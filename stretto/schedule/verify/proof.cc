// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/schedule/verify/proof.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "stretto/base/log.h"
#include "stretto/base/mutex.h"
#include "stretto/schedule/processors.h"
#include "stretto/schedule/verify/verify.h"

namespace stretto::schedule {
namespace {

constexpr std::int32_t kTestedRanks = 64;
constexpr std::int32_t kTestedRootedRanks = 17;
constexpr std::int32_t kTestedRanksOnHosts = 32;

// An all_to_all has a chunk for each pair of ranks.
std::int32_t limit_for(const Algorithm& algorithm, std::int32_t ranks) {
  return algorithm.collective == Collective::all_to_all ? ranks / 2 : ranks;
}

bool goes_by_hosts(const Algorithm& algorithm) {
  return algorithm.name.starts_with("two_level") || algorithm.name == "ring";
}

bool is_regular(std::span<const std::int32_t> hosts) {
  const auto each = static_cast<std::size_t>(std::ranges::count(hosts, 0));
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (std::cmp_not_equal(hosts[rank], rank / each)) return false;
  }
  return hosts.size() % each == 0;
}

bool are_shared(std::span<const std::int32_t> processors) {
  return std::set(processors.begin(), processors.end()).size() < processors.size();
}

Status prove_now(const Algorithm& algorithm, Shape shape,
                 std::span<const std::int32_t> processors) {
  std::vector<Schedule> schedules;
  for (std::int32_t rank = 0; rank < shape.rank_count; ++rank) {
    shape.rank = rank;
    schedules.push_back(processors.empty() ? algorithm.build(shape)
                                           : build_for_processors(algorithm, shape, processors));
  }
  const Status proof = verify(schedules);
  if (proof.ok()) return {};
  return status_of(StatusCode::internal,
                   "{}; the schedule is wrong, so it does not run: this is an error in stretto; "
                   "STRETTO_ALGORITHM can name another algorithm",
                   proof.message());
}

// The results of the proofs of this process. The lock is held during a proof, so that ranks that
// are threads do not all prove the same schedule.
class Proofs {
 public:
  Status prove(const Algorithm& algorithm, const Shape& shape,
               std::span<const std::int32_t> processors) {
    Key key{algorithm.add_steps, shape.rank_count, shape.root.value(), {}, {}};
    get<4>(key).assign(processors.begin(), processors.end());
    if (goes_by_hosts(algorithm)) get<3>(key).assign(shape.hosts.begin(), shape.hosts.end());
    const MutexLock held(mutex_);
    const auto found = known_.find(key);
    if (found != known_.end()) return found->second;
    if (known_.size() >= kKeptMax) known_.clear();
    return known_.emplace(key, prove_now(algorithm, shape, processors)).first->second;
  }

  void warn_once(const Algorithm& algorithm, const Shape& shape) {
    {
      const MutexLock held(mutex_);
      if (!warned_.insert(algorithm.add_steps).second) return;
    }
    log(LogLevel::warning,
        "{} by {} runs on {} ranks without a proof of its schedule: tests prove up to {}, and a "
        "running program up to {}, because the time grows with the third power; "
        "STRETTO_VERIFY=always proves any number",
        name(algorithm.collective), algorithm.name, shape.rank_count,
        limit_for(algorithm, kTestedRanks), limit_for(algorithm, kProvedRanksMax));
  }

 private:
  static constexpr std::size_t kKeptMax = 1024;
  // The algorithm, number of ranks, root, the hosts if the algorithm depends on them, and the
  // processors if ranks share them.
  using Key = std::tuple<AlgorithmFunction, std::int32_t, std::int32_t, std::vector<std::int32_t>,
                         std::vector<std::int32_t>>;

  Mutex mutex_;
  std::map<Key, Status> known_ STRETTO_GUARDED_BY(mutex_);
  std::set<AlgorithmFunction> warned_ STRETTO_GUARDED_BY(mutex_);
};

}  // namespace

bool is_proved_by_tests(const Algorithm& algorithm, const Shape& shape) {
  if (shape.rank_count > limit_for(algorithm, kTestedRanks)) return false;
  if (goes_by_hosts(algorithm) && std::ranges::count(shape.hosts, 0) < std::ssize(shape.hosts)) {
    return shape.root == 0 && is_regular(shape.hosts) &&
           shape.rank_count <= limit_for(algorithm, kTestedRanksOnHosts);
  }
  return shape.root == 0 || shape.rank_count <= kTestedRootedRanks;
}

Status prove(const Algorithm& algorithm, const Shape& shape, Verification wanted,
             std::span<const std::int32_t> processors) {
  if (!are_shared(processors)) processors = {};  // Each rank runs its own schedule.
  const bool is_known = processors.empty() && is_proved_by_tests(algorithm, shape);
  if (wanted == Verification::never || (wanted == Verification::automatic && is_known)) return {};
  static Proofs* const proofs = new Proofs;  // Outlives threads that end after main().
  const bool is_large = shape.rank_count > limit_for(algorithm, kProvedRanksMax);
  if (wanted == Verification::always || !is_large) {
    return proofs->prove(algorithm, shape, processors);
  }
  if (shape.rank == 0) proofs->warn_once(algorithm, shape);
  return {};
}

}  // namespace stretto::schedule

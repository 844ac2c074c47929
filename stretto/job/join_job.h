// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <optional>

#include "stretto/base/environment.h"
#include "stretto/communicator/communicator.h"
#include "stretto/job/job.h"
#include "stretto/job/join_options.h"

namespace stretto::job {

// The environment that the options name, or that of this process.
const Environment& environment_of(const JoinOptions& options);

// What join() does once it is known where the ranks meet.
Result<std::unique_ptr<Communicator>> join_job(const Result<Job>& resolved,
                                               const JoinOptions& options,
                                               const Environment& environment);

// What make_communicator() does, in a store of PyTorch's (Note [rounds] in rendezvous.cc): ranks
// that come to it again, or have been started again, meet as if it were new.
std::unique_ptr<Communicator> join_in_rounds(std::shared_ptr<bootstrap::Store> store, Rank rank,
                                             int size, const JoinOptions& options);

// Has a FlightRecorder observe the communicator, which is the job's, if STRETTO_FLIGHT_RECORD says
// so. `generation`: of an elastic job, whose ranks have other numbers in each.
void record_flight(Communicator& world, const Environment& environment,
                   std::optional<int> generation = std::nullopt);

}  // namespace stretto::job

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

// `options.environment`, or, if that is null, the environment of this process.
const Environment& environment_of(const JoinOptions& options);

// Joins the job once it is known where the ranks meet. Fails with `resolved`'s status if that
// failed.
Result<std::unique_ptr<Communicator>> join_job(const Result<Job>& resolved,
                                               const JoinOptions& options);

// As make_communicator(), with a store of PyTorch's (Note [rounds] in rendezvous.cc): ranks that
// use it again, or that were started again, meet as if the store were new.
std::unique_ptr<Communicator> join_in_rounds(std::shared_ptr<bootstrap::Store> store, Rank rank,
                                             int size, const JoinOptions& options);

// Lets a FlightRecorder observe `world`, the communicator of the job, if STRETTO_FLIGHT_RECORD is
// set. `generation`: of an elastic job; it becomes a part of the file's name, since ranks have
// other numbers in each generation.
void record_flight(Communicator& world, const Environment& environment,
                   std::optional<int> generation = std::nullopt);

}  // namespace stretto::job

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/plugin_factory.h"

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "stretto/base/thread.h"

namespace stretto::job {
namespace {

using MadeLibrary = Result<std::unique_ptr<CollectiveLibrary>>;

// What the thread has, also when nobody waits for it any more.
struct Making {
  std::vector<int> members;
  std::optional<MadeLibrary> made;
  std::atomic<bool> has_ended = false;
};

}  // namespace

communicator::LibraryFactory plugin_factory(const transport::packets::Plugin& plugin, int size) {
  const auto make = [=](const execution::Membership& group,
                        const communicator::LibraryMeeting& meeting) -> MadeLibrary {
    const auto making = std::make_shared<Making>();
    for (const Rank member : group.members) making->members.push_back(member.value());
    const LibraryGroup wanted{.members = making->members.data(),
                              .size = static_cast<int>(making->members.size()),
                              .rank = group.rank.value(),
                              .number = group.group,
                              .job_rank = group.job_rank(group.rank).value(),
                              .job_size = size};
    STRETTO_ASSIGN_OR_RETURN(std::thread thread,
                             start_thread("stretto-library", [making, plugin, wanted] {
                               making->made = transport::packets::make_library(plugin, wanted);
                               making->has_ended = true;
                             }));
    const Status waited = meeting.wait([&] { return making->has_ended.load(); });
    if (!waited.ok()) {
      thread.detach();
      return waited;
    }
    thread.join();
    return std::move(*making->made);
  };
  return {.make = make};
}

}  // namespace stretto::job

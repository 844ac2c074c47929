// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/plugin_factory.h"

#include <memory>
#include <vector>

namespace stretto::job {

communicator::LibraryFactory plugin_factory(const transport::packets::Plugin& plugin, int size) {
  const auto make = [=](const execution::Membership& group,
                        const communicator::LibraryMeeting& meeting)
      -> Result<std::unique_ptr<CollectiveLibrary>> {
    std::vector<int> members;
    for (const Rank member : group.members) members.push_back(member.value());
    const LibraryGroup wanted{.members = members.data(),
                              .size = static_cast<int>(members.size()),
                              .rank = group.rank.value(),
                              .number = group.group,
                              .job_rank = group.job_rank(group.rank).value(),
                              .job_size = size};
    STRETTO_ASSIGN_OR_RETURN(auto library, transport::packets::make_library(plugin, wanted));
    STRETTO_RETURN_IF_ERROR(meeting.wait([&] { return library->is_connected(); }));
    const LibraryFailure failure = library->failure();
    if (failure.code != StatusCode::ok) return Status(failure.code, failure.text);
    return library;
  };
  return {.make = make};
}

}  // namespace stretto::job

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/nccl_factory.h"

#include <optional>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/parse_number.h"
#include "stretto/nccl/nccl_library.h"

namespace stretto::job {
namespace {

Result<std::optional<int>> named_device(const Environment& environment) {
  const std::optional<std::string> text = environment.get("STRETTO_DEVICE");
  if (!text) return std::optional<int>();
  const std::optional<int> number = parse_number<int>(*text);
  if (number && *number >= 0) return number;
  return status_of(StatusCode::invalid_argument,
                   "STRETTO_DEVICE={} is not the number of a device, counted from 0", *text);
}

}  // namespace

Result<communicator::LibraryFactory> nccl_factory(const Environment& environment) {
  STRETTO_ASSIGN_OR_RETURN(const auto nccl, nccl::load_nccl(nccl::nccl_files(environment)));
  STRETTO_ASSIGN_OR_RETURN(const std::optional<int> named, named_device(environment));
  const std::string driver_file = environment.get("STRETTO_CUDA_DRIVER").value_or("");
  STRETTO_ASSIGN_OR_RETURN(const int devices, nccl::Driver::count(driver_file));
  if (devices == 0) {
    return Status(StatusCode::invalid_argument,
                  "the backend \"nccl\" needs a GPU, and this process sees none");
  }
  const auto make = [=](const execution::Membership& group,
                        const communicator::LibraryMeeting& meeting)
      -> Result<std::unique_ptr<CollectiveLibrary>> {
    const int number = named.value_or(meeting.local_rank % devices);
    STRETTO_ASSIGN_OR_RETURN(auto driver, nccl::Driver::open(driver_file, number));
    const std::size_t ranks = group.members.size();
    const auto share_id = [&](nccl::UniqueId& id) -> Status {
      std::vector<nccl::UniqueId> ids(ranks);
      STRETTO_RETURN_IF_ERROR(meeting.all_gather(std::as_bytes(std::span(&id, 1)),
                                                 std::as_writable_bytes(std::span(ids))));
      id = ids.front();
      return {};
    };
    auto library = nccl::NcclLibrary::make(nccl, std::move(driver),
                                           {.rank = group.rank.value(),
                                            .size = static_cast<int>(ranks),
                                            .share_id = share_id,
                                            .wait = meeting.wait});
    if (!library.ok()) return library.status();
    return std::unique_ptr<CollectiveLibrary>(std::move(*library));
  };
  return communicator::LibraryFactory{.make = make, .for_devices = true};
}

}  // namespace stretto::job

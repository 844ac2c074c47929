// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/device_factory.h"

#include <optional>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/parse_number.h"
#include "stretto/cuda/cuda_device.h"
#include "stretto/cuda/load_kernels.h"
#include "stretto/nccl/nccl_library.h"

namespace stretto::job {
namespace {

// At least one.
Result<int> count_devices(std::string_view backend, const std::string& driver_file) {
  Result<int> devices = cuda::Driver::count(driver_file);
  if (devices.ok() && *devices > 0) return devices;
  return status_of(StatusCode::invalid_argument, "the backend \"{}\" needs a GPU, and {}", backend,
                   devices.ok() ? "this process sees none" : devices.status().message());
}

Result<std::optional<int>> named_device(const Environment& environment, const OwnDevice& own) {
  if (own.number) return own.number;
  const std::optional<std::string> text = environment.get("STRETTO_DEVICE");
  if (!text) return std::optional<int>();
  const std::optional<int> number = parse_number<int>(*text);
  if (number && *number >= 0) return number;
  return status_of(StatusCode::invalid_argument,
                   "STRETTO_DEVICE={} is not the number of a device, counted from 0", *text);
}

// Whether our kernels run on that device.
Status probe(const cuda::Kernels& kernels, const cuda::Driver& driver) {
  const cuda::Driver::Current current(driver);
  const int error = kernels.probe();
  if (error == 0) return {};
  return status_of(StatusCode::invalid_argument,
                   "stretto's kernels do not run on device {}: CUDA's error {} (35: the driver is "
                   "older than the CUDA that they were built with; 209: they were built for other "
                   "GPUs)",
                   driver.number(), error);
}

}  // namespace

Result<communicator::LibraryFactory> nccl_factory(const Environment& environment,
                                                  const OwnDevice& own) {
  STRETTO_ASSIGN_OR_RETURN(const auto nccl, nccl::load_nccl(nccl::nccl_files(environment)));
  STRETTO_ASSIGN_OR_RETURN(const std::optional<int> named, named_device(environment, own));
  const std::string driver_file = environment.get("STRETTO_CUDA_DRIVER").value_or("");
  STRETTO_ASSIGN_OR_RETURN(const int devices, count_devices("nccl", driver_file));
  const auto make = [=](const execution::Membership& group,
                        const communicator::LibraryMeeting& meeting)
      -> Result<std::unique_ptr<CollectiveLibrary>> {
    const int number = named.value_or(own.local_rank.value_or(meeting.local_rank) % devices);
    STRETTO_ASSIGN_OR_RETURN(auto driver, cuda::Driver::open(driver_file, number));
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

Result<OpenDevice> device_opener(const Environment& environment, const OwnDevice& own) {
  STRETTO_ASSIGN_OR_RETURN(const std::optional<int> named, named_device(environment, own));
  const std::string driver_file = environment.get("STRETTO_CUDA_DRIVER").value_or("");
  STRETTO_ASSIGN_OR_RETURN(const int devices, count_devices("cuda", driver_file));
  STRETTO_ASSIGN_OR_RETURN(const cuda::Kernels kernels, cuda::load_kernels(environment));
  return OpenDevice([=](int local_rank) -> Result<std::shared_ptr<execution::SharedDevice>> {
    const int number = named.value_or(own.local_rank.value_or(local_rank) % devices);
    STRETTO_ASSIGN_OR_RETURN(auto driver, cuda::Driver::open(driver_file, number));
    STRETTO_RETURN_IF_ERROR(probe(kernels, *driver));
    return std::shared_ptr<execution::SharedDevice>(
        std::make_shared<cuda::CudaDevice>(std::move(driver), kernels));
  });
}

}  // namespace stretto::job

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// The Python module stretto._c. What is public of it is said in python/stretto/__init__.py.

#include <torch/csrc/utils/pybind.h>

#include <ATen/ATen.h>

#include "stretto/c10d/errors.h"
#include "stretto/c10d/flight_recorder.h"
#include "stretto/c10d/process_group.h"
#include "stretto/c10d/without_gil.h"

namespace stretto::c10d_backend {

WithoutGil::WithoutGil()
    : state_(Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}

WithoutGil::~WithoutGil() {
  if (state_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

namespace {

namespace py = pybind11;
using BackendPtr = c10::intrusive_ptr<::c10d::Backend>;

std::optional<Duration> duration_of(const std::optional<double>& seconds) {
  if (!seconds) return std::nullopt;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*seconds));
}

BackendPtr create(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                  double timeout_seconds, const std::string& group_name,
                  const std::vector<uint64_t>& global_ranks, const JoinOptions& join_options) {
  auto options = c10::make_intrusive<::c10d::Backend::Options>(
      "stretto", std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1e3)));
  options->group_name = group_name;
  options->global_ranks_in_group = global_ranks;
  return ProcessGroupStretto::create(store, rank, size, options, join_options);
}

std::shared_ptr<Communicator> communicator_of(const BackendPtr& backend) {
  const auto* const ours = dynamic_cast<ProcessGroupStretto*>(backend.get());
  TORCH_CHECK_VALUE(ours != nullptr, "this process group's backend is ", backend->getBackendName(),
                    ", not stretto");
  return ours->communicator();
}

std::string explain(const BackendPtr& backend, const std::string& collective,
                    const at::Tensor& tensor) {
  for (int number = 0; number < kCollectiveCount; ++number) {
    const auto each = static_cast<Collective>(number);
    if (name(each) != collective) continue;
    OperationTensors tensors;
    const ConstView view = tensors.input(tensor);
    const Explanation found = communicator_of(backend)->explain(each, view.dtype, view.count);
    return found.algorithm + ": " + found.reason;
  }
  TORCH_CHECK_VALUE(false, "\"", collective, "\" is no collective of stretto");
}

}  // namespace

PYBIND11_MODULE(_c, module) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<JoinOptions>(module, "JoinOptions")
      .def(py::init([](std::optional<double> network_timeout, std::optional<double> warn_after,
                       bool disable_shared_memory) {
             JoinOptions options;
             options.network_timeout = duration_of(network_timeout);
             options.warn_after = duration_of(warn_after);
             options.disable_shared_memory = disable_shared_memory;
             return options;
           }),
           py::arg("network_timeout"), py::arg("warn_after"), py::arg("disable_shared_memory"));
  module.def("create", &create, Released());
  module.def("shut_down_all", &ProcessGroupStretto::shut_down_all, Released());
  module.def("note", [](const BackendPtr& backend, const std::string& activity) {
    communicator_of(backend)->note(activity);
  });
  module.def("describe_links",
             [](const BackendPtr& backend) { return communicator_of(backend)->describe_links(); });
  module.def("explain", &explain);
  module.def("flight_record", [] { return py::bytes(FlightRecorder::instance().dump()); });
}

}  // namespace stretto::c10d_backend

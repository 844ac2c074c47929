// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "tests/support/captured_graph.h"

#include <utility>

#include "stretto/cuda_driver/symbol_table.h"

namespace stretto::testing {

using cuda::Driver;

CapturedGraph::CapturedGraph(const std::string& file, std::shared_ptr<const Driver> driver,
                             cuda::StreamHandle stream, const std::function<void()>& body)
    : driver_(std::move(driver)) {
  cuda::SymbolTable::open({file.empty() ? "libcuda.so.1" : file})
      .or_throw()
      .find_all({{"cuStreamBeginCapture_v2", &call_.begin},
                 {"cuStreamEndCapture", &call_.end},
                 {"cuGraphInstantiateWithFlags", &call_.instantiate},
                 {"cuGraphLaunch", &call_.launch},
                 {"cuGraphExecDestroy", &call_.destroy},
                 {"cuGraphDestroy", &call_.destroy_graph}})
      .or_throw();
  begin(stream);
  try {
    body();
  } catch (...) {
    end(stream);
    throw;
  }
  end(stream);
}

void CapturedGraph::begin(cuda::StreamHandle stream) {
  const Driver::Current current(*driver_);
  driver_->status_of_call("cuStreamBeginCapture", call_.begin(stream, 0)).or_throw();
}

void CapturedGraph::end(cuda::StreamHandle stream) {
  const Driver::Current current(*driver_);
  void* graph = nullptr;
  status_ = driver_->status_of_call("cuStreamEndCapture", call_.end(stream, &graph));
  if (!status_.ok()) return;
  status_ =
      driver_->status_of_call("cuGraphInstantiate", call_.instantiate(&executable_, graph, 0));
  (void)call_.destroy_graph(graph);
}

CapturedGraph::~CapturedGraph() {
  const Driver::Current current(*driver_);
  if (executable_ != nullptr) (void)call_.destroy(executable_);
}

void CapturedGraph::launch(cuda::StreamHandle stream) const {
  status_.or_throw();
  const Driver::Current current(*driver_);
  driver_->status_of_call("cuGraphLaunch", call_.launch(executable_, stream)).or_throw();
}

}  // namespace stretto::testing

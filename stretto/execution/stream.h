// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>

#include "stretto/base/status.h"

namespace stretto::execution {

// A point in the work of a stream, for others to wait for. It may be recorded again and again; a
// wait is for the last record before it.
class StreamEvent {
 public:
  virtual ~StreamEvent() = default;
  // Whether everything that its stream had begun when it was recorded is done or has failed. True
  // if it was never recorded. Does not wait.
  virtual bool is_done() = 0;
};

// Work that is carried out in the order in which it is begun, while the thread that begins it goes
// on: a stream of a device, or the operations of a communicator. The defaults are for work that is
// done at once. No function waits. One thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  // Makes an event for record() of this stream. Fails with system or out_of_memory if the device
  // has none left.
  virtual Result<std::unique_ptr<StreamEvent>> make_event();
  // The event now stands for what has been begun here so far.
  virtual void record(StreamEvent& /*event*/) {}
  // What is begun here from now on begins after `event`, which may be another stream's. False: the
  // event is not done, and of a kind that this stream cannot wait for by itself; call again.
  virtual bool wait(StreamEvent& event) { return event.is_done(); }
  // Whether everything that has been begun is done or has failed.
  virtual bool is_done() { return true; }
  // The first failure. Work that was begun after it does not count.
  virtual Status status() { return {}; }
};

}  // namespace stretto::execution

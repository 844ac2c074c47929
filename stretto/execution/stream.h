// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>

#include "stretto/base/status.h"

namespace stretto::execution {

// A moment in the work of a stream, for others to wait for. It may be recorded again and again; who
// waits for it waits for the last time before that.
class StreamEvent {
 public:
  virtual ~StreamEvent() = default;
  // Whether all is done, or has failed, that its stream had begun when it was recorded; so is one
  // that never was. Does not wait.
  virtual bool is_done() = 0;
};

// Work that is carried out in the order in which it is begun, beside the thread that begins it: a
// stream of a device, the operations of a communicator, or, as the defaults have it, something that
// is done at once. Nothing here waits. One thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  // Makes an event for record() of this stream. Fails with system or out_of_memory if the device
  // has none left.
  virtual Result<std::unique_ptr<StreamEvent>> make_event();
  // The event now stands for what has been begun here so far.
  virtual void record(StreamEvent& /*event*/) {}
  // What is begun here from now on begins behind the event, which may be another stream's. False:
  // the event is not done, and of a kind that this stream cannot wait for by itself; ask again.
  virtual bool wait(StreamEvent& event) { return event.is_done(); }
  // Whether all is done, or has failed, that has been begun.
  virtual bool is_done() { return true; }
  // The first failure, after which nothing that was begun later counts.
  virtual Status status() { return {}; }
};

}  // namespace stretto::execution

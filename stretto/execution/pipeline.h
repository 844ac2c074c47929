// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "stretto/execution/stream.h"

namespace stretto::execution {

// The stages through which slices of a buffer go, one after the other, as data. Stages on different
// streams overlap: a slice is sent while the next one is copied.
struct PipelineDesign {
  struct Wait {
    int stage = 0;
    // Whether to wait for the slice that had this one's slot before; else for the same slice.
    bool of_last_lap = false;
  };
  struct Stage {
    std::string_view name;
    std::string_view does;
    int stream = 0;
    std::vector<int> uses;         // Which staging buffers it reads or writes, each in its slot.
    std::vector<Wait> waits = {};  // For stages on other streams; connect() finds them.
  };
  std::string_view name;
  std::vector<std::string_view> streams;
  std::vector<std::string_view> staging;  // Each has a slot for every slice in flight.
  std::vector<Stage> stages;
};

// Works out what each stage has to wait for: the stage before it, and, if it is the first to use a
// staging buffer, the last stage that used the slot before.
PipelineDesign connect(PipelineDesign design);

// The designs "staged", "singa" and "fairring".
std::span<const PipelineDesign> pipelines();

// Runs slices through the stages of a design, `slots` of them in flight. It only begins work: no
// function waits for a stream. It begins a stage of a slice as soon as the stage's stream can wait
// for what comes before it; a stream with several stages takes slice after slice.
//
// Design and streams must outlive it; when it is destroyed, streams may still be at work. One
// thread at a time.
class Pipeline {
 public:
  struct Task {
    int stage = 0;
    std::uint64_t slice = 0;  // Counted from 0 for as long as the pipeline lives.
    int slot = 0;
  };
  // Begins a stage for a slice, on the stage's stream.
  using Begin = std::function<Status(const Task&)>;

  // Fails as Stream::make_event() does.
  static Result<std::unique_ptr<Pipeline>> create(const PipelineDesign& design,
                                                  const std::vector<Stream*>& streams, int slots,
                                                  Begin begin);

  // Adds a slice, which begins after `ready`, if that is not null. The event must stay, and must
  // not be recorded again, until the slice has begun.
  void push(StreamEvent* ready = nullptr);
  // Begins what can be begun, and finds out what has ended. Returns whether anything has begun or
  // ended.
  bool advance();
  std::uint64_t pushed() const { return pushed_; }
  // How many slices have gone through all stages. After a failure no more will.
  std::uint64_t ended() const { return ended_; }
  const Status& status() const { return status_; }
  // Whether no stream works for it any more. To be asked after a failure.
  bool is_idle() const;

 private:
  // A stream, and which of its stages comes next.
  struct Lane {
    Stream* stream = nullptr;
    std::vector<int> stages;
    std::size_t next = 0;
    std::uint64_t slice = 0;
  };
  Pipeline(const PipelineDesign& design, int slots, Begin begin);
  bool begin_next(Lane& lane);
  bool may_begin(Lane& lane, int stage);
  StreamEvent& event(int stage, std::uint64_t slice);

  const PipelineDesign* design_;
  std::uint64_t slots_;
  Begin begin_;
  std::vector<Lane> lanes_;
  std::vector<std::unique_ptr<StreamEvent>> events_;  // Of each stage, for each slot.
  std::vector<std::uint64_t> begun_;                  // How many slices each stage has begun.
  std::deque<StreamEvent*> ready_;                    // For each slice that has not begun.
  std::uint64_t pushed_ = 0;
  std::uint64_t ended_ = 0;
  Status status_;
};

}  // namespace stretto::execution

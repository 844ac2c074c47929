// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "stretto/base/clock.h"
#include "stretto/base/collective_library.h"
#include "stretto/base/mutex.h"
#include "stretto/base/status.h"
#include "stretto/cuda_driver/marks.h"
#include "stretto/nccl/device_end.h"
#include "stretto/nccl/launch.h"
#include "stretto/nccl/load.h"
#include "stretto/nccl/registered_memory.h"

namespace stretto::nccl {

// NCCL for one group of ranks, on one device. It has a stream of its own of high priority, which
// does not wait for the default stream. Communicators are made without blocking, so no call waits
// for other ranks, not even while they connect; has_ended() asks how far NCCL is.
//
// NCCL does not name the rank that has failed, and its errors are often only a consequence of a
// rank's death. So failure() reports them a second later, when the group knows who has died.
class NcclLibrary final : public CollectiveLibrary, private DeviceLibrary {
 public:
  // What a rank needs from the others to make a communicator without blocking for ever.
  struct Meeting {
    int rank = 0;
    int size = 1;
    // Gives rank 0's `id` (128 bytes) to all ranks.
    std::function<Status(UniqueId& id)> share_id;
    // Waits until `done` returns true. Fails if the group fails or the time is up.
    std::function<Status(const std::function<bool()>& done)> wait;
  };
  // Collective. Fails with system and NCCL's text, and as `meeting` does.
  static Result<std::unique_ptr<NcclLibrary>> make(std::shared_ptr<const Nccl> nccl,
                                                   std::shared_ptr<const Driver> driver,
                                                   const Meeting& meeting);
  // Ends the communicator: in order if operations in flight end soon, else by abort.
  ~NcclLibrary() override;

  const char* name() const override { return nccl_->name.c_str(); }
  LibraryFailure failure() const override;
  bool can_run(const OperationDescriptor& operation) const override;
  bool gives_buffers_back() const override { return true; }
  int start(const LibraryCall& call) override;
  bool has_ended(int operation) override;
  void abandon() override;
  DeviceLibrary* for_devices() override { return this; }

 private:
  struct Copy {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::size_t bytes = 0;
  };
  struct Running {
    enum class Phase { queued, launching, running, copying };
    int number = 0;
    Phase phase = Phase::queued;
    Launch launch;
    std::vector<Copy> before;  // On the stream, in front of the launch.
    std::vector<Copy> after;   // To memory of the host, once the launch has ended.
    bool needs_stream_alone = false;
    std::optional<int> mark;  // For memory of devices: what it waits for.
    // A graph captures it, on capture_stream_, and keeps its scratch for good.
    bool is_captured = false;
    std::shared_ptr<RecordedEnd> end;  // Recorded as soon as it runs.
    std::vector<std::size_t> scratch;  // Which of scratch_ it has.
  };
  struct Scratch {
    std::uint64_t data = 0;
    std::size_t bytes = 0;
    bool in_use = false;
  };

  NcclLibrary(std::shared_ptr<const Nccl> nccl, std::shared_ptr<const Driver> driver, int rank,
              int size)
      : nccl_(std::move(nccl)),
        driver_(std::move(driver)),
        rank_(rank),
        size_(size),
        marks_(std::make_shared<cuda::Marks>(driver_)),
        memory_(std::make_shared<RegisteredMemory>(nccl_, driver_, shared_)) {}

  int device() const override { return driver_->number(); }
  int device_of(const void* data) const override { return driver_->device_of(data); }
  bool takes(const void* data) const override { return device_of(data) >= 0; }
  bool takes_host_memory() const override { return true; }
  bool is_registered(const void* data) const override { return memory_->contains(data); }
  Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes) override {
    return memory_->allocate(bytes);
  }
  const char* refusal(const OperationDescriptor& operation,
                      const BufferParts& parts) const override {
    return nccl::refusal(operation, parts.factor);
  }
  Result<bool> is_captured(void* stream) override;
  Result<Mark> mark(void* stream, bool is_captured) override;
  void forget(int mark) override;
  std::shared_ptr<DeviceEnd> end_on_device(int operation) override;
  bool has_given_back() override;

  bool end_well();
  void end_comm(ResultCode (*end)(Comm));
  Status set_up_communicator(const Meeting& meeting);
  Running* find(int operation);
  void stage(Running& running);
  void take_mark(int mark, Running& running);
  StreamHandle stream_of(const Running& running) const {
    return running.is_captured ? capture_stream_ : stream_;
  }
  // These use the communicator:
  void move() STRETTO_REQUIRES(shared_->mutex);
  bool find_end(int operation) STRETTO_REQUIRES(shared_->mutex);
  bool can_have_stream_alone(const Running& running) const;
  void begin(Running& running) STRETTO_REQUIRES(shared_->mutex);
  ResultCode begin_steps(const Running& running) STRETTO_REQUIRES(shared_->mutex);
  ResultCode begin_step(const Step& step, RedOp op, StreamHandle stream)
      STRETTO_REQUIRES(shared_->mutex);
  bool is_good(const char* call, ResultCode result) STRETTO_REQUIRES(shared_->mutex);

  void make_end(Running& running);
  void record_end(const Running& running);
  bool is_done(const Running& running);
  std::byte* take_scratch(Running& running, std::size_t bytes);
  bool make_scratch(std::size_t bytes);
  // Keeps the first failure.
  void fail(const Status& status);

  std::shared_ptr<const Nccl> nccl_;
  std::shared_ptr<const Driver> driver_;
  int rank_;
  int size_;
  std::shared_ptr<SharedComm> shared_ = std::make_shared<SharedComm>();
  std::shared_ptr<cuda::Marks> marks_;
  std::shared_ptr<RegisteredMemory> memory_;
  Config config_;
  StreamHandle stream_ = nullptr;
  StreamHandle capture_stream_ = nullptr;  // For what graphs capture, so that stream_ stays out.
  std::deque<Running> running_;
  int next_number_ = 0;
  std::vector<Scratch> scratch_;
  Status failure_;
  TimePoint failed_at_{};
  bool has_captured_ = false;  // Graphs may hold calls.
  bool abandoned_ = false;
  TimePoint abandoned_at_{};
  std::thread ending_;  // Ends the communicator.
  std::future<void> ended_;
  Mutex mutex_;  // Any thread may mark.
  // Captured operations that have not begun, by mark.
  std::map<int, std::shared_ptr<CapturedEnd>> captured_ STRETTO_GUARDED_BY(mutex_);
};

}  // namespace stretto::nccl

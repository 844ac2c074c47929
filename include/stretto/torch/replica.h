// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "stretto/communicator/communicator.h"
#include "stretto/reducer/reducer.h"
#include "stretto/reducer/uneven_steps.h"
#include "stretto/torch/buffer_hook.h"
#include "stretto/torch/gradient_memory.h"
#include "stretto/torch/hook.h"
#include "stretto/torch/joinable.h"
#include "stretto/torch/logging_data.h"
#include "stretto/torch/mixed_precision.h"
#include "stretto/torch/optimizer_parts.h"
#include "stretto/torch/options.h"
#include "stretto/torch/sparse_gradients.h"
#include "stretto/torch/waits_in_backward.h"

namespace stretto::ddp {

// Where buckets of gradients lie; see stretto/torch/devices.h.
struct BucketLocation {
  torch::Device device = torch::kCPU;
  std::shared_ptr<BucketMemory> memory = std::make_shared<HostBuckets>();
  // Replaces the hook of the options, which does the same on the host. Null: does not replace it.
  std::shared_ptr<CommunicationHook> hook = nullptr;
};

class Replica;

// The state that nested calls of join() share: the innermost loop trains all models, and ranks
// announce its steps once for all. Backward passes read it, for devices on threads of autograd's
// own; it changes only between passes.
struct JoinedLoop : reducer::UnevenSteps {
  using UnevenSteps::UnevenSteps;
  std::string describe(const Announcement& announced) const override;

  std::vector<Replica*> models;  // That of the innermost call is the last.
  // The joinables that all nested calls have named. Null: the object has been destroyed since.
  std::vector<Joinable*> joinables;
};

// This rank's copy of a model, kept equal to those of the other ranks: all of
// DistributedDataParallel that does not depend on the type of the module. See there for the
// contract of each call.
class Replica {
 public:
  Replica(std::shared_ptr<torch::nn::Module> module, Communicator& communicator,
          DistributedDataParallelOptions options);
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;
  ~Replica();

  // The caller keeps the result while the module's forward() runs.
  [[nodiscard]] ForwardScope before_forward();
  // Whether tensors among the module's arguments are converted, and how.
  bool casts_inputs() const { return precision_.casts_inputs(); }
  torch::Tensor cast_input(const torch::Tensor& input) const { return precision_.cast(input); }
  void end_of_forward();
  // `output` is a tensor, or one of the tensors, that forward() has returned.
  void after_forward(const torch::Tensor& output);
  void enter_no_sync() { ++no_sync_depth_; }
  void leave_no_sync() {
    wait_for_pass();
    --no_sync_depth_;
  }
  void set_epoch(std::uint64_t epoch);
  void step_in_backward(torch::optim::Optimizer* optimizer);
  void join(const std::function<void()>& loop, const UnevenInputsOptions& options);
  void verify_replicas();
  void save_state(const std::string& path,
                  const std::vector<const torch::optim::Optimizer*>& optimizers) const;
  void load_state(const std::string& path, const std::vector<torch::optim::Optimizer*>& optimizers);
  LoggingData logging_data() const;
  void print(std::ostream& stream) const;
  std::uint64_t parameter_hash();
  [[nodiscard]] FullPrecision full_precision() { return FullPrecision(precision_); }
  // To be called if no backward pass will follow the last forward pass.
  void put_parameters_back();
  const StepStatistics& last_step() const { return last_step_; }
  const CompressionStatistics* last_compression() const { return hook().last_compression(); }
  const reducer::BucketPlan& bucket_plan() const { return reducer_->plan(); }
  const std::vector<NamedTensor>& trained() const { return trained_; }

 private:
  // The parameters whose gradients are reduced, and Look::gradient for each of parameters_.
  struct Chosen {
    std::vector<NamedTensor> trained;
    std::vector<NamedTensor> sparse;
    std::vector<std::ptrdiff_t> gradients;
  };
  // A parameter in the last forward pass, to notice that the program has changed it since.
  struct Look {
    const void* data = nullptr;
    torch::ScalarType dtype = torch::kFloat;
    bool requires_grad = false, last_requires_grad = false;  // As ranks agreed; in the last pass.
    std::ptrdiff_t gradient = -1;  // Its index in trained_; -1: it has none, or a sparse one.
  };
  // The state of a gradient in a step.
  struct Progress {
    torch::Tensor view;  // In its bucket.
    void* view_data = nullptr;
    bool touched = false;  // Autograd has accumulated into it since the last reduced step.
    // The parameter has another type, shape or strides than `view`: see reduce_late().
    bool outgrown = false;
    // This step reduces it, as the last forward pass found: it is owed, or not frozen.
    bool awaited = false;
    // The parameter is frozen, and earlier passes inside no_sync() may have added to its gradient.
    bool owed = false;
    int arrivals = 0;      // How often autograd has accumulated into it in this step.
    int expected = 0;      // Arrivals in the last step; in the first one, if the graph is static.
    int last_arrival = 0;  // The number of its last arrival among all arrivals of the step.
  };
  // A gradient's place that is lent to another tensor, and the bytes of that tensor.
  struct Borrowed {
    std::size_t index = 0;
    torch::Tensor place;
    std::vector<std::byte> bytes;
  };

  std::string state_path(const std::string& path) const;
  std::string describe_state(std::string gradient_lines, const reducer::BucketOrder& order) const;
  void agree_on_state(const Status& own, const std::string& state);
  void restore_buckets(const std::string& gradient_lines, const reducer::BucketOrder& order);
  std::vector<std::string> sparse_names() const;
  void look_at_parameters();
  Chosen choose_trained(const std::vector<std::string>& also = {}) const;
  bool fits_reducer(const Chosen& chosen) const;
  void adopt(Chosen chosen);
  void refuse_assigned_weights() const;
  void check_tensors() const;
  void check_sparse(const std::vector<NamedTensor>& parameters) const;
  void check_not_of_others() const;
  void check_outgrown() const;
  void look_for_new_parameters();
  void agree_on_refusal();
  void verify_descriptions();
  void broadcast_state(Rank root);
  void agree_on_number();
  std::unique_ptr<Reducer> make_reducer(const std::vector<NamedTensor>& parameters,
                                        ReducerOptions options) const;
  void reduce_from_now_on(Chosen chosen);
  void connect(std::unique_ptr<Reducer> reducer);
  std::vector<GradientDescription> describe_gradients(
      const std::vector<NamedTensor>& parameters) const;
  ReducerOptions reducer_options() const;
  ReducerOptions options_of_all();
  void create_views();
  // Whether a gradient is on another device than its bucket, and so is copied there and back.
  bool is_staged(std::size_t index) const {
    return trained_[index].tensor.device() != location_.device;
  }
  bool all_are_frozen() const { return sparse_.empty() && reducer_->all_frozen() && !outgrown_; }
  void look_at_devices();
  // Waits until nothing of the last backward pass runs any more, unless this thread runs a pass.
  void wait_for_pass() const;
  std::unique_lock<std::mutex> exclusive();  // Held by functions that autograd calls.
  bool is_outgrown(std::size_t index) const;
  void notice_changes();
  void leave_bucket(std::size_t index);
  void refuse_unseen_changes();
  bool has_converted_buffers() const;
  bool synchronizes_buffers() const;
  bool passes_may_differ() const;
  // Whether the places of gradients in buckets are lent to backward, which then writes them there.
  bool lends_places() const;
  bool runs_buffer_hook(BufferHookLocation location) const;
  void synchronize_buffers();
  void run_buffer_hook();
  void begin_silent_pass();
  void begin_pass();
  void on_gradient(std::size_t index);
  void on_sparse_gradient();
  void adopt_gradient(std::size_t index);
  bool settle(std::size_t index);
  void mark_waiting();
  void borrow_places();
  void return_places();
  void verify_after_step(bool replaced);
  void check_gradient(std::size_t index, const torch::Tensor& gradient) const;
  void end_of_backward();
  void abandon_pass();
  void complete_gradients();
  bool complete_gradient(std::size_t index);
  void check_late_gradients() const;
  void finalize(bool with_data);
  void build_anew(bool with_data, double scale);
  void reduce_late(std::vector<NamedTensor>& late, const std::vector<bool>& touched, bool with_data,
                   double scale);
  void settle_gradients(double scale);
  void forget_progress();
  void on_reduced(const FullBucket& bucket);
  void finish_step();
  void finish_stepping();
  void adopt_new_buckets();
  void enter(const UnevenInputsOptions& options);
  void leave(std::size_t joinables_before);
  void follow_others();
  void follow(reducer::UnevenSteps::Phase phase);
  void announce_pass();

  std::shared_ptr<torch::nn::Module> module_;
  Communicator& communicator_;
  const DistributedDataParallelOptions options_;
  std::vector<std::size_t> bucket_bytes_;  // The option, or the measured limits.
  std::uint64_t number_ = 0;               // Of this replica among all on the communicator.
  std::uint64_t epoch_ = 0;
  std::vector<NamedTensor> parameters_;  // Without repetition, in the module's order.
  std::vector<NamedTensor> buffers_;
  std::vector<Look> looks_;                       // Of parameters_.
  std::vector<torch::ScalarType> buffer_dtypes_;  // Of buffers_, as all ranks last agreed.
  std::vector<NamedTensor> trained_;              // With dense gradients: index i is gradient i.
  std::vector<NamedTensor> sparse_;               // With sparse ones.
  // The hook that reduces buckets.
  CommunicationHook& hook() const {
    return location_.hook ? *location_.hook : *options_.communication_hook;
  }
  BucketLocation location_;
  // If parameters are on several devices, autograd's threads, one for each device, take turns.
  std::mutex pass_mutex_;
  std::future<void> pass_;  // Ready when the last pass is over.
  std::unique_ptr<Reducer> reducer_;
  std::vector<Progress> progress_;  // Of trained_.
  GradientMemory gradient_memory_;
  std::vector<std::size_t> waiting_;  // Gradients that have come, but perhaps not to their places.
  std::vector<Borrowed> borrowed_;
  LowPrecision precision_;
  std::shared_ptr<BufferHook> buffer_hook_;
  std::optional<WaitsInBackward> waits_;  // Set if the communication hook may wait in start().
  StepTimer timer_;
  StepStatistics last_step_;
  Duration spent_besides_{};  // Time of communication outside of reducer_ since the last step.
  bool has_rebuilt_buckets_ = false;
  reducer::BucketPlan initial_plan_;
  std::shared_ptr<JoinedLoop> uneven_;  // While inside join().
  UnevenInputsOptions join_options_;
  std::uint64_t verify_from_ = 0;  // The first step after join() that compares replicas; 0: none.
  std::vector<StepInBackward> stepping_;  // One for each optimizer.
  std::vector<torch::Tensor> reduced_;    // Parameters of a reduced bucket, for stepping_.
  int no_sync_depth_ = 0;
  bool accumulated_ = false;           // Since the last step, a pass has run that reduced nothing.
  int last_backward_ = -1;             // The last pass that end_of_backward() was queued for.
  bool is_spread_ = false;             // Parameters and output are on several devices.
  bool is_on_cpu_ = true;              // All parameters are.
  bool seen_ever_ = false;             // before_forward() has run at least once.
  bool seen_ = false;                  // before_forward() has run since the last step.
  const void* began_in_ = nullptr;     // The backward_node() around the step's first forward().
  bool has_sync_batch_norm_ = false;   // The module has a layer of it.
  bool is_frozen_everywhere_ = false;  // Since a step all gradients are frozen, on all ranks.
  bool outgrown_ = false;            // Some parameter or buffer is not what reducer_ was built for.
  Status refusal_;                   // Why this rank cannot train; thrown at the end of the step.
  bool pass_open_ = false;           // A pass has reached the module and not been ended.
  bool owes_verification_ = false;   // Parameters were replaced, and no step has compared them yet.
  bool graph_known_ = false;         // Progress::expected is valid.
  bool same_graph_ = true;           // All steps had the same graph, on all ranks.
  bool has_new_parameters_ = false;  // The module has parameters that have no hook.
  int arrivals_ = 0;                 // Of gradients in this step.
  std::string own_failure_;          // The message of what this object has thrown into the pass.
  std::shared_ptr<Replica*> self_ =
      std::make_shared<Replica*>(this);  // For graphs that outlive this object.
  std::vector<GradientHook> hooks_;      // Last: these call into all of the above.
  std::vector<GradientHook> sparse_hooks_;
};

}  // namespace stretto::ddp

namespace stretto {

// While it lives, backward passes of its DistributedDataParallel add to the gradients of this rank
// and send nothing. Guards may be nested; if not every pass has one, keep it in a std::optional.
// Must not outlive the DistributedDataParallel.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(ddp::Replica& replica) : replica_(&replica) { replica_->enter_no_sync(); }
  NoSync(NoSync&& other) noexcept : replica_(std::exchange(other.replica_, nullptr)) {}
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync() {
    if (replica_ != nullptr) replica_->leave_no_sync();
  }

 private:
  ddp::Replica* replica_;
};

}  // namespace stretto

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/gradient_memory.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace stretto::ddp {
namespace {

constexpr std::size_t kLeastBytes = std::size_t{4} << 10;  // Copying less is cheaper than counting.
constexpr std::size_t kNone = SIZE_MAX;

}  // namespace

struct GradientMemory::State {
  struct PlaceState {
    void* data = nullptr;
    std::size_t size_class = kNone;  // kNone: too small to be lent.
    std::size_t ordinal = kNone;     // Of the request that brought the gradient in the last pass.
    // Set by the pass, cleared by whoever frees the tensor: with release, after the last access to
    // its memory. is_lent() and lend() load with acquire, so later accesses come after that one.
    std::atomic<bool> lent = false;
  };
  // The requests of one size. `answers` has for each, in the order of a pass, the place to lend, or
  // kNone.
  struct SizeClass {
    std::size_t bytes = 0;
    std::size_t requests = 0;  // In this pass.
    std::vector<std::size_t> answers;
  };
  struct Request {
    const void* data = nullptr;
    std::size_t size_class = 0;
    std::size_t ordinal = 0;
  };

  explicit State(std::size_t count) : places(count) {}

  // The answer to a request, or nullptr if the wrapped allocator is to answer it.
  void* lend(std::size_t bytes) {
    pending = {};
    const auto at = std::lower_bound(
        classes.begin(), classes.end(), bytes,
        [](const SizeClass& size, std::size_t wanted) { return size.bytes < wanted; });
    if (at == classes.end() || at->bytes != bytes) return nullptr;
    pending = Request{nullptr, static_cast<std::size_t>(at - classes.begin()), at->requests++};
    if (pending->ordinal >= at->answers.size()) return nullptr;
    const std::size_t index = at->answers[pending->ordinal];
    if (index == kNone || places[index].lent.load(std::memory_order_acquire) || !is_free(index)) {
      return nullptr;
    }
    places[index].lent.store(true, std::memory_order_relaxed);
    note(places[index].data);
    return places[index].data;
  }
  void note(const void* data) {
    if (!pending) return;
    requests.push_back({data, pending->size_class, pending->ordinal});
    pending = {};
  }

  std::vector<PlaceState> places;
  std::vector<SizeClass> classes;  // Ordered by size.
  std::vector<Request> requests;   // Of this pass.
  std::optional<Request> pending;  // The wrapped allocator is answering it.
  std::vector<std::shared_ptr<const void>> owners;
  IsFree is_free;
  std::atomic<bool> in_pass = false;
  bool retired = false;  // Under the mutex of Directory.
};

namespace {

using State = GradientMemory::State;

// All places of the process, by address, for whoever frees a tensor.
class Directory {
 public:
  void add(const std::shared_ptr<State>& state) {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < state->places.size(); ++i) {
      const auto address = reinterpret_cast<std::uintptr_t>(state->places[i].data);
      if (state->places[i].size_class == kNone) continue;
      entries_[address] = {state, i};
      // Relaxed: whoever frees a tensor here got it from this thread after this call.
      low_.store(std::min(low_.load(std::memory_order_relaxed), address),
                 std::memory_order_relaxed);
      high_.store(std::max(high_.load(std::memory_order_relaxed), address),
                  std::memory_order_relaxed);
    }
  }
  // Forgets the places that are not lent now. give_back() forgets each of the others.
  void retire(const std::shared_ptr<State>& state) {
    const std::lock_guard lock(mutex_);
    state->retired = true;
    for (std::size_t i = 0; i < state->places.size(); ++i) {
      if (state->places[i].lent.load(std::memory_order_acquire)) continue;
      const auto at = entries_.find(reinterpret_cast<std::uintptr_t>(state->places[i].data));
      if (at != entries_.end() && at->second.state == state) entries_.erase(at);
    }
  }
  bool give_back(void* data) {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    if (address < low_.load(std::memory_order_relaxed) ||
        address > high_.load(std::memory_order_relaxed)) {
      return false;
    }
    Entry entry;  // If it is the last owner of a bucket, that is freed after the lock is released.
    const std::lock_guard lock(mutex_);
    const auto at = entries_.find(address);
    if (at == entries_.end()) return false;
    entry = at->second;
    entry.state->places[entry.index].lent.store(false, std::memory_order_release);
    if (entry.state->retired) entries_.erase(at);
    return true;
  }

 private:
  struct Entry {
    std::shared_ptr<State> state;
    std::size_t index = 0;
  };

  std::mutex mutex_;
  std::map<std::uintptr_t, Entry> entries_;
  std::atomic<std::uintptr_t> low_ = UINTPTR_MAX;
  std::atomic<std::uintptr_t> high_ = 0;
};

Directory& directory() {
  static auto* const only = new Directory;  // Never destroyed: statics may free tensors at exit.
  return *only;
}

// The passes of this thread, usually one. `passes_have_ended` says that the list is destroyed:
// tensors may be made while a thread ends.
thread_local bool passes_have_ended = false;
struct Passes {
  ~Passes() { passes_have_ended = true; }
  std::vector<std::shared_ptr<State>> list;
};
thread_local Passes passes;

// Wraps libtorch's allocator, and lends places in buckets first. All memory from it has the same
// deleter, and its own address as context, as Allocator::raw_allocate() demands.
class BucketAllocator : public c10::Allocator {
 public:
  explicit BucketAllocator(c10::Allocator& behind)
      : behind_(behind), delete_behind_(behind.raw_deleter()) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes < kLeastBytes || passes_have_ended || passes.list.empty()) return from_behind(bytes);
    for (const auto& state : passes.list) {
      if (!state->in_pass.load(std::memory_order_relaxed)) continue;
      if (void* const data = state->lend(bytes); data != nullptr) {
        return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
      }
    }
    c10::DataPtr result = from_behind(bytes);
    for (const auto& state : passes.list) state->note(result.get());
    return result;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }

  static void install() {
    static const bool installed = [] {
      c10::Allocator* const behind = c10::GetCPUAllocator();
      if (behind->raw_deleter() == nullptr) return false;  // Then gradients are copied.
      only_ = new BucketAllocator(*behind);
      c10::SetCPUAllocator(only_);
      return true;
    }();
    static_cast<void>(installed);
  }

 private:
  c10::DataPtr from_behind(std::size_t bytes) {
    c10::DataPtr result = behind_.allocate(bytes);
    static_cast<void>(result.compare_exchange_deleter(delete_behind_, &release));
    return result;
  }
  static void release(void* data) {
    if (!directory().give_back(data)) only_->delete_behind_(data);
  }

  static BucketAllocator* only_;
  c10::Allocator& behind_;
  c10::DeleterFnPtr delete_behind_;
};

BucketAllocator* BucketAllocator::only_ = nullptr;

}  // namespace

void GradientMemory::assign(const std::vector<Place>& places, IsFree is_free) {
  BucketAllocator::install();
  const bool in_pass = state_ != nullptr && state_->in_pass.load(std::memory_order_relaxed);
  retire();
  state_ = std::make_shared<State>(places.size());
  state_->is_free = std::move(is_free);
  std::map<std::size_t, std::size_t> sizes;
  for (const Place& place : places) {
    if (place.bytes >= kLeastBytes) sizes[place.bytes] = 0;
  }
  for (auto& [bytes, number] : sizes) {
    number = state_->classes.size();
    state_->classes.push_back({.bytes = bytes, .requests = 0, .answers = {}});
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    state_->places[i].data = places[i].data;
    if (places[i].bytes < kLeastBytes) continue;
    state_->places[i].size_class = sizes[places[i].bytes];
    state_->owners.push_back(places[i].owner);
  }
  directory().add(state_);
  if (in_pass) begin_pass();
}

void GradientMemory::begin_pass() {
  if (state_ == nullptr || state_->classes.empty()) return;
  for (State::SizeClass& size : state_->classes) size.requests = 0;
  state_->requests.clear();
  state_->in_pass.store(true, std::memory_order_relaxed);
  // Passes that have ended on another thread are erased, too.
  std::erase_if(passes.list, [&](const std::shared_ptr<State>& pass) {
    return pass == state_ || !pass->in_pass.load(std::memory_order_relaxed);
  });
  passes.list.push_back(state_);
}

void GradientMemory::end_pass() {
  if (state_ == nullptr) return;
  state_->in_pass.store(false, std::memory_order_relaxed);
  std::erase(passes.list, state_);
}

void GradientMemory::learn(std::size_t index, const void* data) {
  if (state_ == nullptr || data == state_->places[index].data) return;
  State::PlaceState& place = state_->places[index];
  if (place.size_class == kNone) return;  // Requests of this size are not counted.
  const auto at = std::find_if(state_->requests.rbegin(), state_->requests.rend(),
                               [&](const State::Request& request) { return request.data == data; });
  if (at == state_->requests.rend() || at->size_class != place.size_class) return;
  std::vector<std::size_t>& answers = state_->classes[at->size_class].answers;
  if (place.ordinal != kNone) answers[place.ordinal] = kNone;
  if (answers.size() <= at->ordinal) answers.resize(at->ordinal + 1, kNone);
  const std::size_t former = std::exchange(answers[at->ordinal], index);
  if (former != kNone) state_->places[former].ordinal = kNone;
  place.ordinal = at->ordinal;
}

bool GradientMemory::is_lent(std::size_t index) const {
  return state_ != nullptr && state_->places[index].lent.load(std::memory_order_acquire);
}

bool GradientMemory::may_lend(std::size_t index) const {
  return state_ != nullptr && state_->places[index].size_class != kNone;
}

GradientMemory::NoLending::NoLending() : passes_(std::exchange(passes.list, {})) {}

GradientMemory::NoLending::~NoLending() { passes.list = std::move(passes_); }

void GradientMemory::retire() {
  if (state_ == nullptr) return;
  end_pass();
  directory().retire(state_);
  state_.reset();
}

}  // namespace stretto::ddp

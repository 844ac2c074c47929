// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "stretto/base/mutex.h"
#include "stretto/communicator/operation_observer.h"

namespace stretto::communicator {

// A list of which the first `n` are where the list is: of few, nothing is allocated.
template <class T, std::size_t n>
class ShortList {
 public:
  void push_back(const T& value) {
    if (size_ < n) {
      first_[size_] = value;
    } else {
      others_.push_back(value);
    }
    ++size_;
  }
  std::size_t size() const { return size_; }
  const T& operator[](std::size_t i) const { return i < n ? first_[i] : others_[i - n]; }

 private:
  std::array<T, n> first_ = {};
  std::vector<T> others_;
  std::size_t size_ = 0;
};

// The sizes and types of an operation's tensors, without the tensors.
struct FlightTensors {
  struct Type {
    const char* dtype = "";  // PyTorch's name, which lives for good: "Float".
    std::size_t dims = 0;
  };
  void add(const char* dtype, std::span<const std::int64_t> sizes_of_tensor) {
    types.push_back({dtype, sizes_of_tensor.size()});
    for (const std::int64_t size : sizes_of_tensor) sizes.push_back(size);
  }

  ShortList<Type, 2> types;
  ShortList<std::int64_t, 4> sizes;  // Of all tensors, one after the other.
};

// One operation, in the words of PyTorch's flight recorder.
struct FlightEntry {
  enum class State : int { started, completed, failed };

  static std::int64_t now_ns() {
    return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  }
  void end(bool well) {
    ended_ns = now_ns();
    state = well ? State::completed : State::failed;
  }

  const char* operation = "";  // By which PyTorch's tool knows it; lives for good.
  std::optional<Rank> message_to = std::nullopt;  // See ObservedOperation.
  std::optional<Rank> message_from = std::nullopt;
  std::uint64_t collective_number = 0;  // The last one of each kind, this one included.
  std::uint64_t message_number = 0;
  FlightTensors inputs = {};
  FlightTensors outputs = {};
  std::chrono::milliseconds timeout{0};  // 0: the group's.
  std::shared_ptr<const ObservedGroup> group = nullptr;

  std::uint64_t record_number = 0;  // Counted from 1.
  std::int64_t created_ns = now_ns();
  std::int64_t ended_ns = 0;
  State state = State::started;
};

// The last operations of groups, which PyTorch's torchfrtrace compares with those of other ranks.
// Any thread.
class FlightEntries {
 public:
  // `library`: one that the tool knows, "gloo".
  FlightEntries(std::size_t capacity, std::string library)
      : capacity_(capacity), library_(std::move(library)) {}

  std::size_t capacity() const { return capacity_; }
  // Returns the number by which end() knows the entry, as long as it is kept; 0: it is not.
  std::uint64_t record(FlightEntry entry);
  void end(std::uint64_t record_number, bool well);
  std::string json() const;
  std::string pickled() const;
  // To a file, which whoever finds it finds whole. Throws SystemError. Any thread.
  void write(const std::string& path) const;

 private:
  std::vector<FlightEntry> in_order() const;
  nlohmann::json document() const;

  const std::size_t capacity_;
  const std::string library_;
  mutable Mutex mutex_;
  // Entries lie here, one after the other: what is allocated for each would be touched anew when it
  // is overwritten, after thousands of others.
  std::vector<FlightEntry> ring_ STRETTO_GUARDED_BY(mutex_);
  std::uint64_t recorded_ STRETTO_GUARDED_BY(mutex_) = 0;
};

}  // namespace stretto::communicator

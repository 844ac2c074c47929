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

// A list that stores its first `n` elements in the object, so that a short list allocates nothing.
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
    const char* dtype = "";  // PyTorch's name, a static string: "Float".
    std::size_t dims = 0;
  };
  void add(const char* dtype, std::span<const std::int64_t> sizes_of_tensor) {
    types.push_back({dtype, sizes_of_tensor.size()});
    for (const std::int64_t size : sizes_of_tensor) sizes.push_back(size);
  }

  ShortList<Type, 2> types;
  ShortList<std::int64_t, 4> sizes;  // The sizes of all tensors, one after the other.
};

// One operation, in the terms of PyTorch's flight recorder.
struct FlightEntry {
  enum class State : int { started, completed, failed };

  static std::int64_t now_ns() {
    return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  }
  void end(bool well) {
    ended_ns = now_ns();
    state = well ? State::completed : State::failed;
  }

  const char* operation = "";                     // Its name for PyTorch's tool; a static string.
  std::optional<Rank> message_to = std::nullopt;  // See ObservedOperation.
  std::optional<Rank> message_from = std::nullopt;
  // Numbers of the last collective and the last message, this operation included.
  std::uint64_t collective_number = 0;
  std::uint64_t message_number = 0;
  FlightTensors inputs = {};
  FlightTensors outputs = {};
  std::chrono::milliseconds timeout{0};  // 0: the group's timeout.
  std::shared_ptr<const ObservedGroup> group = nullptr;

  std::uint64_t record_number = 0;  // Counted from 1.
  std::int64_t created_ns = now_ns();
  std::int64_t ended_ns = 0;
  State state = State::started;
};

// The last operations of all groups. PyTorch's torchfrtrace compares them with those of other
// ranks. Any thread.
class FlightEntries {
 public:
  // `library`: a name that the tool knows, such as "gloo".
  FlightEntries(std::size_t capacity, std::string library)
      : capacity_(capacity), library_(std::move(library)) {}

  std::size_t capacity() const { return capacity_; }
  // Stores an entry, and returns its number for end(). 0: the capacity is 0.
  std::uint64_t record(FlightEntry entry);
  void end(std::uint64_t record_number, bool well);
  std::string json() const;
  std::string pickled() const;
  // Writes the pickled form to a file, which appears only when it is complete. Throws SystemError.
  // Any thread.
  void write(const std::string& path) const;

 private:
  std::vector<FlightEntry> in_order() const;
  nlohmann::json document() const;

  const std::size_t capacity_;
  const std::string library_;
  mutable Mutex mutex_;
  // Entries are stored in place: memory allocated for each entry would no longer be in a cache when
  // the entry is overwritten after thousands of others.
  std::vector<FlightEntry> ring_ STRETTO_GUARDED_BY(mutex_);
  std::uint64_t recorded_ STRETTO_GUARDED_BY(mutex_) = 0;
};

}  // namespace stretto::communicator

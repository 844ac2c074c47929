// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace stretto {

// A first-in, first-out queue. It grows when necessary and never gives memory back. So a queue that
// has reached its greatest length allocates no more; a std::deque would allocate a block every few
// hundred pushes.
template <class T>
class RingQueue {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  T& front() { return items_[first_]; }
  const T& front() const { return items_[first_]; }
  T& operator[](std::size_t index) { return items_[wrap(first_ + index)]; }
  const T& operator[](std::size_t index) const { return items_[wrap(first_ + index)]; }

  // Allocates room for `size` items.
  void reserve(std::size_t size) {
    while (items_.size() < size) grow();
  }
  void push(T item) {
    if (size_ == items_.size()) grow();
    items_[wrap(first_ + size_)] = std::move(item);
    ++size_;
  }
  void pop() {
    items_[first_] = T();
    first_ = wrap(first_ + 1);
    --size_;
  }

 private:
  std::size_t wrap(std::size_t index) const {
    return index < items_.size() ? index : index - items_.size();
  }
  void grow() {
    std::vector<T> larger(items_.empty() ? 8 : 2 * items_.size());
    for (std::size_t i = 0; i < size_; ++i) larger[i] = std::move((*this)[i]);
    items_ = std::move(larger);
    first_ = 0;
  }

  std::vector<T> items_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace stretto

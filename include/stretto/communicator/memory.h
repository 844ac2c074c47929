// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace stretto {

// Registered memory (see Communicator::allocate_bytes). Copies of this object share it; the last
// one frees it, which must not happen while an operation uses the memory.
class Memory {
 public:
  Memory() = default;
  // `owner` keeps the bytes alive.
  Memory(std::shared_ptr<void> owner, std::span<std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::shared_ptr<void> owner_;
  std::span<std::byte> bytes_;
};

// `count` registered elements.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(Memory memory, std::size_t count)
      : memory_(std::move(memory)),
        elements_(reinterpret_cast<T*>(memory_.bytes().data()), count) {}

  std::span<T> span() const { return elements_; }
  T* data() const { return elements_.data(); }
  std::size_t size() const { return elements_.size(); }
  T* begin() const { return elements_.data(); }
  T* end() const { return elements_.data() + elements_.size(); }
  T& operator[](std::size_t index) const { return elements_[index]; }

 private:
  Memory memory_;
  std::span<T> elements_;
};

}  // namespace stretto

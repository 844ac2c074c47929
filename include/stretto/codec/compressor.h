// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace stretto {

// What gradients are compressed by: a Codec, which makes a message of a vector, or power_sgd(),
// whose factors ranks add up on the way. Immutable, so several threads may use one.
class Compressor {
 public:
  virtual ~Compressor() = default;
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;

  // "top_k(0.01), bf16 values": what it is and its settings; those of the same name do the same.
  const std::string& name() const { return name_; }
  // Whether what is left of a vector is shorter than the vector. If not, carrying it over from step
  // to step makes it grow without bound: one_bit() rounded stochastically.
  virtual bool is_contraction() const { return true; }
  // Steps from the first on in which more is sent than will be later.
  virtual std::uint64_t warm_up_steps() const { return 0; }

 protected:
  explicit Compressor(std::string name) : name_(std::move(name)) {}

 private:
  const std::string name_;
};

struct PowerSgdOptions {
  std::size_t rank = 2;  // Of the matrices that stand for gradients, from 1 on.
};

// Sees a gradient as a matrix of GradientDescription::rows rows (unknown: nearly a square), and
// sends two thin ones whose product stands for it, of rank * (rows + columns) numbers; they are
// found by one step of power iteration from those of the step before. A gradient that they would
// not make smaller travels as it is.
class PowerSgd final : public Compressor {
 public:
  explicit PowerSgd(std::size_t rank);
  std::size_t rank() const { return rank_; }

 private:
  const std::size_t rank_;
};

// Throws InvalidArgument for rank 0.
std::shared_ptr<const Compressor> power_sgd(const PowerSgdOptions& options = {});

}  // namespace stretto

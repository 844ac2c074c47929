// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace stretto {

// A way to compress gradients: a Codec, which makes a message of a vector, or power_sgd(), whose
// factors are added up by all_reduces. Immutable, so several threads may use one.
class Compressor {
 public:
  virtual ~Compressor() = default;
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;

  // "top_k(0.01), bf16 values": the kind and its settings. Compressors of the same name do the
  // same.
  const std::string& name() const { return name_; }
  // Whether the residual of a vector is shorter than the vector. If not, carrying residuals over
  // from step to step makes them grow without bound, as with one_bit() rounded stochastically.
  virtual bool is_contraction() const { return true; }
  // The number of first steps in which more is sent than in later ones.
  virtual std::uint64_t warm_up_steps() const { return 0; }

 protected:
  explicit Compressor(std::string name) : name_(std::move(name)) {}

 private:
  const std::string name_;
};

struct PowerSgdOptions {
  std::size_t rank = 2;  // Of the approximation of a gradient's matrix; at least 1.
};

// PowerSGD (Vogels, Karimireddy, Jaggi, 2019). Sees a gradient as a matrix of
// GradientDescription::rows rows (if unknown: nearly a square), and sends two thin matrices whose
// product approximates it, of rank * (rows + columns) numbers. One step of power iteration finds
// them from those of the last step. A gradient that they would not make smaller is sent
// uncompressed.
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

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <algorithm>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/core.h>

#include "stretto/base/random.h"
#include "stretto/kernel/guarded_bytes.h"
#include "stretto/kernel/reduce.h"
#include "stretto/kernel/reduce_oracle.h"

// Reductions on random buffers, compared with reduce_oracle.h on every target: for tests only.
namespace stretto::kernel {

struct Case {
  DType dtype = DType::f32;
  DType output_dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int divisor = 1;
  std::vector<DType> inputs;
  int outputs = 1;
  std::size_t count = 0;
  int in_place = 0;      // The first outputs are inputs, as many as this.
  bool aligned = false;  // Buffers start a cache line; else at any element.
  Store store = Store::automatic;
};

// What the arguments leave open is drawn at random.
inline Case random_case(DType dtype, ReduceOp op, int inputs, std::size_t count, Random& random) {
  Case one;
  one.dtype = one.output_dtype = dtype;
  one.op = op;
  one.count = count;
  const DType partial = accumulation_dtype(dtype);
  if (random.below(2) == 0) one.output_dtype = partial;
  if (random.below(3) == 0 && supports(ReduceOp::mean, dtype)) {
    one.divisor = static_cast<int>(1 + random.below(9));
  }
  const bool mixed = random.below(2) == 0;
  for (int i = 0; i < inputs; ++i) {
    one.inputs.push_back(mixed && random.below(2) == 0 ? partial : dtype);
  }
  one.outputs = static_cast<int>(1 + random.below(3));
  one.in_place = static_cast<int>(random.below(static_cast<std::uint64_t>(one.outputs) + 1));
  one.aligned = random.below(2) == 0;
  one.store = random.below(2) == 0 ? Store::non_temporal : Store::cached;
  return one;
}

inline std::string describe(const Case& one) {
  return fmt::format("{} of {} to {}: {} inputs, {} outputs, {} in place, {} elements, divisor {}",
                     name(one.op), name(one.dtype), name(one.output_dtype), one.inputs.size(),
                     one.outputs, one.in_place, one.count, one.divisor);
}

// Any bits one time in four, which for floating point means special and huge values too; else a
// small number.
template <class T>
T random_number(Random& random) {
  const std::uint64_t bits = random.next();
  const double number = (random.uniform() - 0.5) * 64;
  T value{};
  if constexpr (std::is_same_v<T, bool>) {
    value = (bits & 1) != 0;
  } else if (random.below(4) == 0) {
    std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  } else if constexpr (std::is_same_v<T, Half>) {
    value = oracle::narrow_to_half(static_cast<float>(number));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    value = oracle::narrow_to_bfloat16(static_cast<float>(number));
  } else if constexpr (std::is_floating_point_v<T>) {
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
    const T specials[] = {T{0}, -T{0}, kInfinity, -kInfinity, kNan, -kNan};
    value = bits % 32 < 6 ? specials[bits % 32] : static_cast<T>(number);
  } else {
    value = static_cast<T>(static_cast<std::int64_t>(number));
  }
  return value;
}

template <class T>
requires std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>> T
random_number(Random& random) {
  using Real = typename T::value_type;
  const Real real = random_number<Real>(random);
  return {real, random_number<Real>(random)};
}

template <class T>
class Checker {
  using Sum = decltype(oracle::widened<T>(DType::f32, nullptr, 0));

 public:
  Checker(const Case& one, Random& random) : case_(one) {
    for (const DType dtype : one.inputs) {
      inputs_.push_back(room(dtype, random));
      for (std::size_t i = 0; i < one.count; ++i) {
        if (dtype == dtype_of<T>) {
          oracle::write(inputs_.back().data(), i, random_number<T>(random));
        } else {
          oracle::write(inputs_.back().data(), i, random_number<Sum>(random));
        }
      }
    }
    for (int k = 0; k < one.outputs; ++k) fresh_.push_back(room(one.output_dtype, random));
    expected_ = expected();
  }

  // What is wrong on `target`; empty if nothing is.
  std::string problem_on(std::string_view target) const {
    if (!use_target(target).ok()) return fmt::format("no target {}", target);
    std::vector<GuardedBytes> inputs = inputs_, outputs = fresh_;
    std::vector<Input> input_list;
    std::vector<GuardedBytes*> written;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      input_list.push_back({inputs[i].data(), case_.inputs[i]});
      const bool fits = case_.inputs[i] == case_.output_dtype;
      if (fits && std::ssize(written) < case_.in_place) written.push_back(&inputs[i]);
    }
    for (std::size_t k = written.size(); k < outputs.size(); ++k) written.push_back(&outputs[k]);
    const Status status = run(input_list, written);
    if (!status.ok()) return std::string(status.message());
    for (const GuardedBytes* bytes : written) {
      const std::size_t i = first_difference(*bytes);
      if (i < case_.count) return fmt::format("{}: element {} is wrong", target, i);
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const bool is_output = std::find(written.begin(), written.end(), &inputs[i]) != written.end();
      if (!is_output &&
          !std::equal(inputs[i].data(), inputs[i].data() + inputs[i].size(), inputs_[i].data())) {
        return fmt::format("{}: input {} has changed", target, i);
      }
    }
    inputs.insert(inputs.end(), outputs.begin(), outputs.end());
    const bool inside = std::all_of(inputs.begin(), inputs.end(), [](const GuardedBytes& bytes) {
      return bytes.strips_are_untouched();
    });
    return inside ? "" : fmt::format("{}: wrote outside of a buffer", target);
  }

 private:
  GuardedBytes room(DType dtype, Random& random) const {
    const std::size_t element = size_bytes(dtype);
    // A complex number is aligned as its parts are.
    const std::size_t alignment = is_complex(dtype) ? element / 2 : element;
    const std::size_t places = case_.aligned ? 0 : random.below(64 / alignment);
    return GuardedBytes(case_.count * element, places * alignment);
  }

  Status run(const std::vector<Input>& inputs, const std::vector<GuardedBytes*>& written) const {
    std::vector<void*> outputs;
    for (GuardedBytes* bytes : written) outputs.push_back(bytes->data());
    return reduce(reduction(inputs, outputs));
  }

  Reduction reduction(std::span<const Input> inputs, std::span<void* const> outputs) const {
    return {.dtype = case_.dtype,
            .output_dtype = case_.output_dtype,
            .op = case_.op,
            .divisor = case_.divisor,
            .count = case_.count,
            .inputs = inputs,
            .outputs = outputs,
            .store = case_.store};
  }

  std::vector<std::byte> expected() const {
    std::vector<Input> inputs;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      inputs.push_back({inputs_[i].data(), case_.inputs[i]});
    }
    return oracle::reduce(reduction(inputs, {}));
  }

  // The number of the first element that is not as expected, or the number of elements.
  std::size_t first_difference(const GuardedBytes& bytes) const {
    const auto* const end = bytes.data() + bytes.size();
    const auto different = std::mismatch(bytes.data(), end, expected_.begin()).first;
    return static_cast<std::size_t>(different - bytes.data()) / size_bytes(case_.output_dtype);
  }

  Case case_;
  std::vector<GuardedBytes> inputs_;
  std::vector<GuardedBytes> fresh_;
  std::vector<std::byte> expected_;
};

// Fills buffers at random and reduces them on every target. Says what is not as the oracle has it,
// or what else has changed; empty if all is well.
inline std::string problem_with(const Case& one, Random& random) {
  if (!supports(one.op, one.dtype)) return describe(one) + ": not supported";
  return oracle::with_type(one.dtype, [&]<class T>(T) {
    const Checker<T> checker(one, random);
    for (const std::string_view target : available_targets()) {
      if (std::string problem = checker.problem_on(target); !problem.empty()) return problem;
    }
    return std::string();
  });
}

}  // namespace stretto::kernel

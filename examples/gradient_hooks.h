// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "stretto/reducer/compressed_reduction.h"

// What examples compress gradients with, by name: bench/convergence.py compares what they do to
// learning.
namespace gradient_hooks {

struct Choice {
  std::string name;
  std::function<std::shared_ptr<stretto::CommunicationHook>()> make;
  double share = 1;           // Of the bytes of a gradient that are sent, if the hook does not say.
  bool has_momentum = false;  // The optimizer is to have none, then.
};

inline std::vector<Choice> all() {
  using namespace stretto;
  const auto compressed = [](const CompressionOptions& options) {
    return [options]() -> std::shared_ptr<CommunicationHook> {
      return std::make_shared<CompressedReduction>(options);
    };
  };
  const auto few = top_k();
  const auto warm = top_k({.warm_up_steps = 100});
  return {
      {"dense f32", [] { return std::make_shared<PlainReduction>(); }},
      {"f16", [] { return std::make_shared<F16Reduction>(); }, 0.5},
      {"bf16", [] { return std::make_shared<Bf16Reduction>(); }, 0.5},
      {"top_k 1 %", compressed({.codec = few})},
      {"top_k 10 %", compressed({.codec = top_k({.density = 0.1})})},
      {"top_k 1 %, bf16 values", compressed({.codec = top_k({.values = ValueFormat::bf16})})},
      {"top_k 1 %, reused limit", compressed({.codec = top_k({.exact = false})})},
      {"top_k 1 %, divided", compressed({.codec = few, .exchange = CompressedExchange::divide})},
      {"top_k 1 %, warm-up", compressed({.codec = warm})},
      {"top_k 1 %, warm-up, clipped", compressed({.codec = warm, .clip_norm = 1})},
      {"top_k 1 %, warm-up, momentum corrected",
       compressed({.codec = warm, .momentum = 0.9f, .mask_momentum = true}), 1, true},
      {"top_k 1 %, warm-up, momentum corrected, not masked",
       compressed({.codec = warm, .momentum = 0.9f, .mask_momentum = false}), 1, true},
      {"top_k 1 %, no residual", compressed({.codec = few, .error_feedback = false})},
      {"int8", compressed({.codec = int8()})},
      {"one_bit", compressed({.codec = one_bit()})},
      {"PowerSGD rank 2", compressed({.codec = power_sgd({.rank = 2})})},
      {"PowerSGD rank 4", compressed({.codec = power_sgd({.rank = 4})})},
      {"one_bit, 100 dense steps", compressed({.codec = one_bit(), .dense_steps = 100})},
      {"PowerSGD rank 4, 100 dense steps",
       compressed({.codec = power_sgd({.rank = 4}), .dense_steps = 100})},
  };
}

// The bytes that this rank has sent of `gradient_bytes` in the last step.
inline double sent_bytes(const Choice& choice, const stretto::CommunicationHook& hook,
                         double gradient_bytes) {
  const stretto::CompressionStatistics* const step = hook.last_compression();
  if (step == nullptr) return choice.share * gradient_bytes;
  return gradient_bytes - static_cast<double>(step->gradient_bytes) +
         static_cast<double>(step->message_bytes);
}

inline Choice named(const std::string& name) {
  for (const Choice& choice : all()) {
    if (choice.name == name) return choice;
  }
  throw std::runtime_error("gradients can be compressed in many ways, but not by '" + name + "'");
}

}  // namespace gradient_hooks

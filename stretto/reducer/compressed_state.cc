// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// What of a CompressedReduction is saved: a head, then each residual with its name.

#include <cstring>
#include <limits>

#include "stretto/base/content_hash.h"
#include "stretto/base/error.h"
#include "stretto/reducer/compressed_gradient.h"

namespace stretto {
namespace {

constexpr std::uint64_t kMagic = 0x3149534552525453;  // "STRRESI1".

struct State {
  std::uint64_t step = 0;
  std::uint64_t rank = 0;
  std::uint64_t ranks = 0;
  std::map<std::string, std::vector<float>> residuals;
};

void put(std::vector<std::byte>& out, const void* data, std::size_t bytes) {
  const auto* const from = static_cast<const std::byte*>(data);
  out.insert(out.end(), from, from + bytes);
}
void put(std::vector<std::byte>& out, std::uint64_t number) { put(out, &number, sizeof(number)); }

std::vector<std::byte> print(const State& state) {
  std::vector<std::byte> out;
  for (const std::uint64_t number : {kMagic, state.step, state.rank, state.ranks}) put(out, number);
  put(out, state.residuals.size());
  for (const auto& [name, values] : state.residuals) {
    put(out, name.size());
    put(out, name.data(), name.size());
    put(out, values.size());
    put(out, values.data(), values.size() * sizeof(float));
  }
  put(out, content_hash(out));
  return out;
}

[[noreturn]] void refuse(const char* why) {
  throw InvalidArgument(status_of(StatusCode::invalid_argument,
                                  "this is no saved state of a CompressedReduction: {}", why));
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> take(std::uint64_t bytes) {
    if (bytes > bytes_.size()) refuse("it ends too early");
    const auto taken = bytes_.first(bytes);
    bytes_ = bytes_.subspan(bytes);
    return taken;
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

State parse(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(std::uint64_t)) refuse("it is too short");
  const auto body = bytes.first(bytes.size() - sizeof(std::uint64_t));
  if (Reader(bytes.subspan(body.size())).number() != content_hash(body)) {
    refuse("its checksum is wrong");
  }
  Reader reader(body);
  if (reader.number() != kMagic) refuse("it begins with something else");
  State state;
  state.step = reader.number();
  state.rank = reader.number();
  state.ranks = reader.number();
  for (std::uint64_t left = reader.number(); left > 0; --left) {
    const auto name = reader.take(reader.number());
    const std::uint64_t count = reader.number();
    if (count > std::numeric_limits<std::uint32_t>::max()) refuse("a residual is too long");
    const auto values = reader.take(count * sizeof(float));
    std::vector<float>& residual =
        state.residuals[std::string(reinterpret_cast<const char*>(name.data()), name.size())];
    residual.resize(count);
    if (count > 0) std::memcpy(residual.data(), values.data(), values.size());
  }
  if (!reader.at_end()) refuse("there is more than it says");
  return state;
}

}  // namespace

std::vector<std::byte> CompressedReduction::save() const {
  State state{.step = step_,
              .rank = static_cast<std::uint64_t>(rank_),
              .ranks = static_cast<std::uint64_t>(ranks_),
              .residuals = {}};
  for (const auto& [name, gradient] : gradients_) {
    if (!gradient->residual.empty()) state.residuals[name] = gradient->residual;
  }
  return print(state);
}

// Of gradients that are not mentioned nothing is left.
void CompressedReduction::load(std::span<const std::byte> bytes) {
  State state = parse(bytes);
  for (const auto& [name, gradient] : gradients_) {
    const auto found = state.residuals.find(name);
    const bool fits = found == state.residuals.end() || by_index_.empty() ||
                      found->second.size() == gradient->residual.size();
    if (!fits) refuse("a residual has another length than its gradient");
  }
  loaded_ = Origin{state.rank, state.ranks};
  if (ranks_ > 0) check_origin();
  step_ = state.step;
  for (auto& [name, gradient] : gradients_) {
    if (!state.residuals.contains(name)) gradient->residual.assign(gradient->residual.size(), 0.0f);
  }
  for (auto& [name, values] : state.residuals) {
    std::unique_ptr<Gradient>& gradient = gradients_[name];
    if (gradient == nullptr) gradient = std::make_unique<Gradient>();
    gradient->residual = std::move(values);
  }
}

void CompressedReduction::check_origin() const {
  if (!loaded_) return;
  const auto ranks = static_cast<std::uint64_t>(ranks_);
  if (loaded_->ranks == ranks && loaded_->rank == static_cast<std::uint64_t>(rank_)) return;
  throw InvalidArgument(status_of(
      StatusCode::invalid_argument,
      "what was loaded was saved by rank {} of {}, and this is rank {} of {}. Load what the same "
      "rank has saved; for another number of ranks, what CompressedReduction::redistribute() makes",
      loaded_->rank, loaded_->ranks, rank_, ranks_));
}

std::vector<std::vector<std::byte>> CompressedReduction::redistribute(
    std::span<const std::vector<std::byte>> states, std::size_t ranks) {
  State sum;
  for (std::size_t rank = 0; rank < states.size(); ++rank) {
    const State state = parse(states[rank]);
    if (state.rank != rank || state.ranks != states.size()) {
      refuse("the states are not those of all ranks in their order");
    }
    if (rank > 0 && state.step != sum.step) refuse("the states are of different steps");
    sum.step = state.step;
    for (const auto& [name, values] : state.residuals) {
      std::vector<float>& into = sum.residuals[name];
      if (!into.empty() && into.size() != values.size()) refuse("residuals differ in length");
      into.resize(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) into[i] += values[i];
    }
  }
  std::vector<std::vector<std::byte>> made;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    sum.rank = rank;
    sum.ranks = ranks;
    made.push_back(print(sum));
    if (rank > 0) continue;
    for (auto& [name, values] : sum.residuals) values.assign(values.size(), 0.0f);
  }
  return made;
}

}  // namespace stretto

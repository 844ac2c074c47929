// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/saved_state.h"

#include <cstring>
#include <limits>
#include <utility>

#include "stretto/base/content_hash.h"
#include "stretto/base/log.h"
#include "stretto/base/refuse.h"

namespace stretto::reducer {
namespace {

constexpr std::uint64_t kMagic = 0x3245544154535453;      // "STSTATE2".
constexpr std::uint64_t kListMagic = 0x3253455441545354;  // "TSTATES2".
constexpr const char* kHook = "compressed";  // The kind of hook that saves such states.

void put(std::vector<std::byte>& out, const void* data, std::size_t bytes) {
  const auto* const from = static_cast<const std::byte*>(data);
  out.insert(out.end(), from, from + bytes);
}
void put(std::vector<std::byte>& out, std::uint64_t number) { put(out, &number, sizeof(number)); }
void put(std::vector<std::byte>& out, const std::string& text) {
  put(out, text.size());
  put(out, text.data(), text.size());
}

[[noreturn]] void refuse_state(const std::string& why) {
  refuse("this is no saved state of a communication hook or of compressed vectors: {}", why);
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> take(std::uint64_t bytes) {
    if (bytes > bytes_.size()) refuse_state("it ends too early");
    const auto taken = bytes_.first(bytes);
    bytes_ = bytes_.subspan(bytes);
    return taken;
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }
  std::string text() {
    const auto bytes = take(number());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void values(SavedState::Values& into) {
    for (std::uint64_t left = number(); left > 0; --left) {
      std::vector<float>& values = into[text()];
      const std::uint64_t count = number();
      if (count > std::numeric_limits<std::uint32_t>::max()) refuse_state("a vector is too long");
      const auto bytes = take(count * sizeof(float));
      values.resize(count);
      if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    }
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

// Checks `magic` and the checksum; returns a reader of the bytes between them.
Reader content_of(std::span<const std::byte> bytes, std::uint64_t magic) {
  if (bytes.size() < sizeof(std::uint64_t)) refuse_state("it is too short");
  const auto content = bytes.first(bytes.size() - sizeof(std::uint64_t));
  Reader reader(content);
  // Before the checksum, which another version may compute differently.
  if (reader.number() != magic) refuse_state("it begins with something else");
  if (Reader(bytes.subspan(content.size())).number() != content_hash(content)) {
    refuse_state("its checksum is wrong");
  }
  return reader;
}

void add(SavedState::Values& sums, const SavedState::Values& values) {
  for (const auto& [name, from] : values) {
    std::vector<float>& into = sums[name];
    if (!into.empty() && into.size() != from.size())
      refuse_state("ranks had vectors of other lengths");
    into.resize(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) into[i] += from[i];
  }
}

void scale(SavedState::Values& values, float factor) {
  for (auto& [name, of_name] : values) {
    for (float& value : of_name) value *= factor;
  }
}

// Whether the bytes begin like a list of states.
bool are_states(std::span<const std::byte> bytes) {
  return bytes.size() >= sizeof(kListMagic) &&
         std::memcmp(bytes.data(), &kListMagic, sizeof(kListMagic)) == 0;
}

}  // namespace

std::vector<std::byte> print(const SavedState& state) {
  std::vector<std::byte> out;
  put(out, kMagic);
  put(out, kHook);
  for (const std::uint64_t number : {state.step, state.rank, state.ranks}) put(out, number);
  for (const auto* const part : {&state.residuals, &state.momenta, &state.factors}) {
    put(out, part->size());
    for (const auto& [name, values] : *part) {
      put(out, name);
      put(out, values.size());
      put(out, values.data(), values.size() * sizeof(float));
    }
  }
  put(out, content_hash(out));
  return out;
}

SavedState parse(std::span<const std::byte> bytes) {
  Reader reader = content_of(bytes, kMagic);
  const std::string hook = reader.text();
  if (hook != kHook) refuse_state("it is of '" + hook + "', and this is '" + kHook + "'");
  SavedState state;
  state.step = reader.number();
  state.rank = reader.number();
  state.ranks = reader.number();
  for (auto* const part : {&state.residuals, &state.momenta, &state.factors}) reader.values(*part);
  if (!reader.at_end()) refuse_state("there is more than it says");
  return state;
}

std::vector<std::byte> print(const SavedStates& states) {
  std::vector<std::byte> out;
  put(out, kListMagic);
  put(out, states.size());
  for (const auto& [name, state] : states) {
    put(out, name);
    put(out, state.size());
    put(out, state.data(), state.size());
  }
  put(out, content_hash(out));
  return out;
}

SavedStates parse_states(std::span<const std::byte> bytes) {
  Reader reader = content_of(bytes, kListMagic);
  SavedStates states;
  for (std::uint64_t left = reader.number(); left > 0; --left) {
    const std::string name = reader.text();
    const auto state = reader.take(reader.number());
    if (!states.emplace(name, std::vector<std::byte>(state.begin(), state.end())).second) {
      refuse_state("'" + name + "' is in it twice");
    }
  }
  if (!reader.at_end()) refuse_state("there is more than it says");
  return states;
}

std::vector<std::byte> print_at(const std::string& place, std::vector<std::byte> state) {
  return print(SavedStates{{place, std::move(state)}});
}

std::vector<std::byte> state_at(const std::string& place, std::span<const std::byte> bytes) {
  SavedStates states{{"", {bytes.begin(), bytes.end()}}};
  if (are_states(bytes)) states = parse_states(bytes);
  if (states.size() != 1) refuse("this is not the state of one hook");
  auto& [of_place, saved] = *states.begin();
  if (saved.empty() || of_place == place) return std::move(saved);
  SavedState state = parse(saved);
  state.rank = state.ranks = 0;
  state.residuals.clear();
  state.momenta.clear();
  std::erase_if(state.factors, [](const auto& each) { return each.first != kAnnounced; });
  const auto named = [](const std::string& each) {
    return each.empty() ? "all of each gradient" : each;
  };
  log(LogLevel::warning,
      "residuals and momenta of the hook's state are lost, since other ranks share hosts, or the "
      "work is done elsewhere: they are of {}, and this rank has {}",
      named(of_place), named(place));
  return print(state);
}

void check_compressed(const SavedState& state, int rank, int ranks,
                      const std::function<bool(const std::string& name)>& knows) {
  const bool is_own = state.rank == static_cast<std::uint64_t>(rank) &&
                      state.ranks == static_cast<std::uint64_t>(ranks);
  if (!is_own && state.ranks != 0) {  // 0: the hook had no ranks yet.
    refuse(
        "the hook's state was saved by rank {} of {}, and this is rank {} of {}. Load what the "
        "same rank has saved; for another number of ranks, what redistribute() makes",
        state.rank, state.ranks, rank, ranks);
  }
  std::vector<const char*> unknown;
  for (const auto& saved : state.residuals) {
    if (!knows(saved.first)) unknown.push_back(saved.first.c_str());
  }
  if (unknown.empty()) return;
  if (unknown.size() == state.residuals.size()) {
    refuse("the hook's state is of another model: of '{}' for one, and there is no such gradient",
           unknown.front());
  }
  if (rank != 0) return;
  log(LogLevel::warning,
      "the hook's state has residuals of {} gradients that this model does not have, and they are "
      "lost: of '{}' for one",
      unknown.size(), unknown.front());
}

std::vector<std::vector<std::byte>> redistribute(std::span<const std::vector<std::byte>> states,
                                                 std::size_t ranks, ReduceOp op) {
  if (states.empty()) refuse_state("there is none");
  if (ranks == 0) refuse("states are wanted for 0 ranks");
  SavedState made;
  for (std::size_t rank = 0; rank < states.size(); ++rank) {
    if (are_states(states[rank])) {
      refuse(
          "the state of rank {} is of a part of each gradient, since the rank shared its host with "
          "others; such parts are for as many ranks on the same hosts",
          rank);
    }
    SavedState state = parse(states[rank]);
    if (state.rank != rank || state.ranks != states.size()) {
      refuse_state("the states are not those of all ranks in their order");
    }
    if (rank > 0 && state.step != made.step) refuse_state("the states are of different steps");
    add(made.residuals, state.residuals);
    add(made.momenta, state.momenta);
    if (rank == 0) made.factors = std::move(state.factors);
    made.step = state.step;
  }
  made.ranks = ranks;
  // A mean divides what a rank adds by the number of ranks, which has changed.
  const auto before = static_cast<float>(states.size()), after = static_cast<float>(ranks);
  const bool is_mean = op == ReduceOp::mean;
  if (is_mean) scale(made.residuals, after / before);
  scale(made.momenta, 1 / (is_mean ? before : after));
  std::vector<std::vector<std::byte>> printed;
  for (made.rank = 0; made.rank < ranks; ++made.rank) {
    printed.push_back(print(made));
    if (made.rank > 0) continue;
    for (auto& [name, values] : made.residuals) values.assign(values.size(), 0.0f);
  }
  return printed;
}

const std::vector<float>* find(const SavedState::Values& values, const std::string& name,
                               std::size_t count) {
  const auto found = values.find(name);
  if (found == values.end()) return nullptr;
  if (found->second.size() == count) return &found->second;
  refuse(
      "the hook's state has {} elements for {}, and now {} are wanted: it was saved with another "
      "model or other settings",
      found->second.size(), name, count);
}

}  // namespace stretto::reducer

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/reducer/compressed_all_reduce.h"

#include <cstdint>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/error.h"
#include "stretto/base/refuse.h"
#include "stretto/reducer/saved_state.h"

namespace stretto {
namespace {

// Reduces a bucket of one vector. Its name holds all that ranks have to agree about.
class VectorReduction final : public CompressedReduction {
 public:
  VectorReduction(const CompressedAllReduceOptions& options, std::size_t count)
      : CompressedReduction({.codec = options.codec,
                             .min_elements = 1,
                             .error_feedback = options.state != nullptr,
                             .non_finite = options.non_finite,
                             .exchange = options.exchange,
                             .seed = options.seed}),
        name_(fmt::format("{}; {} of '{}', {} elements", CompressedReduction::name(),
                          stretto::name(options.op), options.name, count)) {}
  std::string name() const override { return name_; }
  using CompressedReduction::abandon;

 private:
  const std::string name_;
};

// Whether these options equal the ones that ranks have agreed about.
bool are_alike(const CompressedAllReduceOptions& one, const CompressedAllReduceOptions& other) {
  return (one.codec == other.codec ||
          (other.codec != nullptr && one.codec->name() == other.codec->name())) &&
         one.op == other.op && one.non_finite == other.non_finite &&
         one.exchange == other.exchange && one.seed == other.seed;
}

}  // namespace

struct CompressionState::Vector {
  bool is_of(const Communicator& other) const { return communicator == other.serial(); }
  void agree(Communicator& other) {
    communicator = 0;
    const GradientDescription description{.name = options.name, .count = count};
    reduction->attach(other, {&description, 1});
    communicator = other.serial();
  }
  const CompressedReduction& state() const { return reduction != nullptr ? *reduction : *loaded; }

  std::unique_ptr<CompressedReduction> loaded = nullptr;  // Until the first call names the codec.
  std::unique_ptr<VectorReduction> reduction = nullptr;
  CompressedAllReduceOptions options = {};
  std::size_t count = 0;
  std::uint64_t calls = 0;
  bool is_on_its_way = false;
  std::uint64_t communicator = 0;  // Its serial(), if its ranks have agreed.
};

// A vector in flight. `bucket` points into this object.
struct CompressedWork::Call {
  Call(std::shared_ptr<CompressionState::Vector> of, Communicator& communicator,
       std::span<float> data, const CompressedAllReduceOptions& options)
      : vector(std::move(of)), view(view_of(data)) {
    bucket = {.step = ++vector->calls,
              .view = view,
              .gradients = {&index, 1},
              .gradient_views = {&view, 1},
              .op = options.op,
              .timeout = options.timeout};
    // Until the call has ended well, the state before it is remembered.
    if (options.non_finite == NonFinite::stop && options.state != nullptr) {
      bucket.uncomputed = {&may_be_forgotten, 1};
    }
    work = vector->reduction->start(communicator, bucket);
    vector->is_on_its_way = true;
  }
  // The vector may outlive this object, and its buffers are then free for the next call.
  ~Call() {
    vector->reduction->abandon(bucket.index);
    vector->is_on_its_way = false;
  }

  const std::shared_ptr<CompressionState::Vector> vector;
  const std::size_t index = 0;
  const std::uint8_t may_be_forgotten = 1;
  const View view;
  FullBucket bucket;
  Work work;  // Ends before the vector's messages do.
};

CompressionStatistics CompressedWork::wait() {
  if (call_ == nullptr) refuse("a compressed all_reduce has been waited for already");
  const std::shared_ptr<Call> call = std::move(call_);
  call->work.wait();
  try {
    call->vector->reduction->finish(call->bucket);
  } catch (const InvalidArgument&) {
    // NonFinite::stop: no rank has received values of any rank.
    if (!call->bucket.uncomputed.empty()) call->vector->reduction->forget({&call->index, 1});
    throw;
  }
  return call->vector->reduction->last_step();
}

CompressionStatistics all_reduce(Communicator& communicator, std::span<float> data,
                                 const CompressedAllReduceOptions& options) {
  return start_all_reduce(communicator, data, options).wait();
}

CompressedWork start_all_reduce(Communicator& communicator, std::span<float> data,
                                const CompressedAllReduceOptions& options) {
  const auto started = [&](std::shared_ptr<CompressionState::Vector> vector) {
    return CompressedWork(
        std::make_shared<CompressedWork::Call>(std::move(vector), communicator, data, options));
  };
  const int rank = communicator.rank().value();
  if (options.codec == nullptr) refuse("rank {}: a compressed all_reduce needs a codec", rank);
  if (data.size() > std::numeric_limits<std::uint32_t>::max()) {
    refuse("rank {}: codecs take fewer than 2^32 elements, not {}", rank, data.size());
  }
  if (options.op != ReduceOp::sum && options.op != ReduceOp::mean) {
    refuse("rank {}: {} of compressed vectors has no meaning; sum and mean have", rank,
           name(options.op));
  }
  const auto made = [&] {
    auto vector = std::make_shared<CompressionState::Vector>();
    vector->reduction = std::make_unique<VectorReduction>(options, data.size());
    vector->options = options;
    vector->count = data.size();
    return vector;
  };
  if (options.state == nullptr) {
    const auto vector = made();
    vector->agree(communicator);
    return started(vector);
  }
  if (options.name.empty()) {
    refuse(
        "rank {}: a compressed all_reduce with a state needs a name, by which what is not sent "
        "is kept",
        rank);
  }
  auto& vectors = options.state->vectors_;
  auto found = vectors.find(options.name);
  if (found == vectors.end() || found->second->reduction == nullptr) {
    auto vector = made();
    if (found != vectors.end()) vector->reduction->load(found->second->loaded->save());
    vector->agree(communicator);
    found = vectors.insert_or_assign(options.name, std::move(vector)).first;
  }
  CompressionState::Vector& vector = *found->second;
  if (vector.count != data.size() || !are_alike(vector.options, options)) {
    refuse(
        "rank {}: '{}' was '{}' before, and now is '{}'; use another name, or forget() it on "
        "all ranks",
        rank, options.name, vector.reduction->name(), VectorReduction(options, data.size()).name());
  }
  if (vector.is_on_its_way) {
    refuse("rank {}: '{}' is on its way; wait for it first", rank, options.name);
  }
  if (!vector.is_of(communicator)) vector.agree(communicator);
  return started(found->second);
}

std::span<const float> CompressionState::residual(const std::string& name) const {
  const auto found = vectors_.find(name);
  return found != vectors_.end() ? found->second->state().residual(name) : std::span<const float>();
}

void CompressionState::forget(const std::string& name) { vectors_.erase(name); }

std::vector<std::byte> CompressionState::save() const {
  reducer::SavedStates states;
  for (const auto& [name, vector] : vectors_) {
    states[name] = vector->state().save();
  }
  return reducer::print(states);
}

void CompressionState::load(std::span<const std::byte> state) {
  std::map<std::string, std::shared_ptr<Vector>> loaded;
  for (auto& [name, bytes] : reducer::parse_states(state)) {
    auto vector = std::make_shared<Vector>();
    vector->loaded = std::make_unique<CompressedReduction>();
    vector->loaded->load(bytes);
    loaded.emplace(name, std::move(vector));
  }
  vectors_ = std::move(loaded);
}

std::vector<std::vector<std::byte>> CompressionState::redistribute(
    std::span<const std::vector<std::byte>> states, std::size_t ranks, ReduceOp op) {
  if (states.empty() || ranks == 0) refuse("states of no rank, or for none");
  std::map<std::string, std::vector<std::vector<std::byte>>> by_name;
  for (const std::vector<std::byte>& state : states) {
    for (auto& [name, bytes] : reducer::parse_states(state)) {
      by_name[name].push_back(std::move(bytes));
    }
  }
  std::vector<reducer::SavedStates> made(ranks);
  for (const auto& [name, of_ranks] : by_name) {
    if (of_ranks.size() != states.size()) {
      refuse("'{}' is in the states of {} of {} ranks", name, of_ranks.size(), states.size());
    }
    auto parts = CompressedReduction::redistribute(of_ranks, ranks, op);
    for (std::size_t rank = 0; rank < ranks; ++rank) made[rank][name] = std::move(parts[rank]);
  }
  std::vector<std::vector<std::byte>> printed;
  for (const reducer::SavedStates& part : made) printed.push_back(reducer::print(part));
  return printed;
}

}  // namespace stretto

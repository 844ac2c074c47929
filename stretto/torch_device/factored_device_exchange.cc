// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

// PowerSGD of gradients on a device. Data as long as a gradient stays there. Factors go to the
// host, where the ranks add them up and make the left ones orthogonal, so that all ranks have the
// same, whatever devices they have. The steps are those of reducer/factored_exchange.cc, except for
// infinity and NaN: there the host clears such residuals at once, and here this is done at the end
// of a step.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "stretto/base/check.h"
#include "stretto/base/content_hash.h"
#include "stretto/base/round_up.h"
#include "stretto/codec/finite.h"
#include "stretto/reducer/compressed_exchange.h"
#include "stretto/torch_device/device_tensors.h"
#include "stretto/torch_device/extract_exchange.h"
#include "stretto/torch_device/extract_share.h"
#include "stretto/torch_device/host_copies.h"
#include "stretto/torch_device/streams.h"

namespace stretto::ddp {
namespace {

// The state of a gradient that is kept from step to step, beside its residual.
struct FactoredGradient {
  void draw_right() {
    factors.draw_right(key);
    right.reset();
  }

  Factors factors;
  std::uint64_t key = 0;
  std::vector<float> before;  // The right factors before the step.
  torch::Tensor right;        // factors.right on the device, if it is there.
};

struct Item {
  FactoredGradient* gradient;
  KeptResidual residual;
};

// The next thing to do with a bucket when later ones are full.
enum class Next { add_left, make_right, add_right, nothing };

struct FactoredBucket {
  std::span<float> left() const { return floats({room.bytes().data(), left_count, DType::f32}); }
  std::span<float> right() const {
    return floats({room.bytes().data() + left_count * sizeof(float), right_count, DType::f32});
  }
  View plain_sum() const {
    return {room.bytes().data() + (left_count + right_count) * sizeof(float),
            plain_bytes / size_bytes(plain_dtype), plain_dtype};
  }

  std::vector<Item> items;
  std::vector<View> plain;
  DType plain_dtype = DType::f32;
  ReduceOp op = ReduceOp::mean;
  std::optional<Duration> timeout;
  std::size_t left_count = 0, right_count = 0, plain_bytes = 0;
  Memory room;         // Of the host: left factors, right ones, the other gradients.
  torch::Tensor made;  // From the device, until the host has it.
  torch::Tensor made_plain;
  std::optional<DeviceEvent> done;  // When both are made.
  torch::Tensor left_sums;          // Orthogonal, on the device.
  CopiesFromHost uploaded;
  TimePoint sent;
  Next next = Next::nothing;
  Work plain_work;
  Work work;
};

// Gradients as matrices of whole rows, with zeros behind the last one.
torch::Tensor matrix_of(const torch::Tensor& values, const codec::MatrixShape& shape) {
  const auto rows = static_cast<std::int64_t>(shape.rows);
  const auto columns = static_cast<std::int64_t>(shape.columns);
  const std::int64_t missing = rows * columns - values.numel();
  const torch::Tensor whole = missing > 0 ? torch::constant_pad_nd(values, {0, missing}) : values;
  return whole.view({rows, columns});
}

// values += factor * left * right. Computed column by column and not as a product of matrices, so
// that devices of all kinds round alike and none uses fewer bits (TF32): a residual has to keep
// what the factors leave out.
void add_product(const torch::Tensor& values, const codec::MatrixShape& shape,
                 const torch::Tensor& left, const torch::Tensor& right, double factor) {
  torch::Tensor matrix = matrix_of(values, shape);
  for (std::int64_t c = 0; c < right.size(0); ++c) {
    matrix.addcmul_(left.narrow(1, c, 1), right.narrow(0, c, 1), factor);
  }
  if (matrix.data_ptr() != values.data_ptr()) {
    values.copy_(matrix.view({-1}).narrow(0, 0, values.numel()));
  }
}

// A gradient's part of the factors of a bucket, as matrices.
torch::Tensor left_of(const torch::Tensor& all, std::size_t first, const Factors& factors) {
  return part_of(all, first, factors.left.size())
      .view({static_cast<std::int64_t>(factors.shape.rows), -1});
}
torch::Tensor right_of(const torch::Tensor& all, std::size_t first, const Factors& factors) {
  return part_of(all, first, factors.right.size())
      .view({-1, static_cast<std::int64_t>(factors.shape.columns)});
}

// The columns of the left factors have length 1, so no element of the product is greater.
bool has_product(const Factors& factors) {
  if (!factors.is_finite()) return false;
  float greatest = 0;
  for (const float value : factors.right) greatest = std::max(greatest, std::abs(value));
  return greatest < std::numeric_limits<float>::max() / static_cast<float>(factors.rank);
}

class FactoredDeviceExchange final : public ExchangeByBucket<FactoredBucket> {
 public:
  FactoredDeviceExchange(std::size_t rank, torch::Device device)
      : ExchangeByBucket(device), matrix_rank_(rank) {}

  std::string_view name() const override { return "added on the host, "; }
  bool spoils_residuals() const override { return true; }
  bool describe(const GradientDescription& description) override;
  void forget(std::string_view gradient) override;
  std::span<const float> kept(std::string_view gradient) const override {
    return gradients_.find(gradient)->second.factors.right;
  }
  void keep(std::string_view gradient, const std::vector<float>* saved) override;
  StartedExchange start(const FullBucket& full, BucketExtracts own,
                        const codec::Position& position) override;
  ExchangedExtracts wait(const FullBucket& full) override;
  void finish(const FullBucket& full) override;

 private:
  void take(FactoredBucket& bucket, const FullBucket& full, BucketExtracts own);
  void provide_right(FactoredBucket& bucket) const;
  void make_left(FactoredBucket& bucket) const;
  Duration advance(FactoredBucket& bucket);
  void add_left(FactoredBucket& bucket);
  void make_right(FactoredBucket& bucket) const;
  torch::Tensor right_of_item(const Item& item, const torch::Tensor& left) const;
  void add_right(FactoredBucket& bucket);
  torch::Tensor upload(FactoredBucket& bucket, ConstByteSpan from) const;
  torch::Tensor upload(FactoredBucket& bucket, std::span<const float> from) const {
    return upload(bucket, std::as_bytes(from)).view(torch::kFloat);
  }
  Work add_up(const FactoredBucket& bucket, const View& view) const {
    return communicator_->all_reduce(view, {.op = bucket.op, .timeout = bucket.timeout});
  }
  void multiply(const FullBucket& full, FactoredBucket& bucket, const torch::Tensor& right) const;

  const std::size_t matrix_rank_;
  std::map<std::string, FactoredGradient, std::less<>> gradients_;
  CopiesToHost to_host_{device_};
};

bool FactoredDeviceExchange::describe(const GradientDescription& description) {
  const codec::MatrixShape shape = codec::matrix_shape(description.count, description.rows);
  if (!are_shorter(shape, matrix_rank_, description.count)) return false;
  FactoredGradient& gradient = gradients_[description.name];
  gradient.key = content_hash(std::as_bytes(std::span(description.name)));
  gradient.factors.shape = shape;
  gradient.factors.rank = matrix_rank_;
  gradient.factors.left.resize(matrix_rank_ * shape.rows);
  if (gradient.factors.right.size() == matrix_rank_ * shape.columns) return true;
  gradient.factors.right.resize(matrix_rank_ * shape.columns);
  gradient.draw_right();
  return true;
}

void FactoredDeviceExchange::forget(std::string_view gradient) {
  FactoredGradient& forgotten = gradients_.find(gradient)->second;
  forgotten.factors.right = forgotten.before;
  forgotten.right.reset();
}

void FactoredDeviceExchange::keep(std::string_view gradient, const std::vector<float>* saved) {
  FactoredGradient& loaded = gradients_.find(gradient)->second;
  loaded.draw_right();
  if (saved != nullptr) loaded.factors.right = *saved;
}

torch::Tensor FactoredDeviceExchange::upload(FactoredBucket& bucket, ConstByteSpan from) const {
  const torch::Tensor there = torch::empty({static_cast<std::int64_t>(from.size())},
                                           torch::TensorOptions(torch::kByte).device(device_));
  there.copy_(tensor_of(from, torch::kCPU), /*non_blocking=*/true);
  bucket.uploaded.record(device_);
  return there;
}

void FactoredDeviceExchange::take(FactoredBucket& bucket, const FullBucket& full,
                                  BucketExtracts own) {
  bucket.items.clear();
  bucket.left_count = bucket.right_count = bucket.plain_bytes = 0;
  for (std::size_t i = 0; i < own.names.size(); ++i) {
    FactoredGradient& gradient = gradients_.find(own.names[i])->second;
    gradient.before = gradient.factors.right;
    bucket.left_count += gradient.factors.left.size();
    bucket.right_count += gradient.factors.right.size();
    bucket.items.push_back({&gradient, std::move(own.residuals[i])});
  }
  bucket.plain = std::move(own.plain);
  for (const View& view : bucket.plain) bucket.plain_bytes += view.bytes();
  bucket.plain_dtype = full.view.dtype;
  bucket.op = full.op;
  bucket.timeout = full.timeout;
  const std::size_t bytes =
      round_up((bucket.left_count + bucket.right_count) * sizeof(float) + bucket.plain_bytes, 64);
  if (bucket.room.bytes().size() >= bytes) return;
  bucket.uploaded.wait();  // Copies of the step before.
  make_anew(bucket.room, bytes, *communicator_, device_);
}

StartedExchange FactoredDeviceExchange::start(const FullBucket& full, BucketExtracts own,
                                              const codec::Position&) {
  FactoredBucket& bucket = bucket_of(full);
  take(bucket, full, std::move(own));
  StartedExchange started;
  const auto advance_all = [&] {
    for (FactoredBucket* const each : pending_) started.waited += advance(*each);
    std::erase_if(pending_, [](const auto* each) { return each->next == Next::nothing; });
  };
  on_device([&] {
    const torch::NoGradGuard no_grad;
    // Without autocast, even if the program runs backward under it.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    make_left(bucket);
    full.memory->publish();  // Before other buckets may fail.
    advance_all();           // While the device works on this one; all ranks in the same order.
    pending_.push_back(&bucket);
    while (full.is_last() && !pending_.empty()) advance_all();
  });
  full.memory->publish();
  return started;
}

// Works on a bucket until its next operation is submitted; returns how long this has waited.
Duration FactoredDeviceExchange::advance(FactoredBucket& bucket) {
  const TimePoint begin = Clock::now();
  if (bucket.next == Next::make_right) bucket.work.wait();
  const Duration waited = Clock::now() - begin;
  switch (bucket.next) {
    case Next::add_left:
      add_left(bucket);
      break;
    case Next::make_right:
      make_right(bucket);
      break;
    case Next::add_right:
      add_right(bucket);
      break;
    case Next::nothing:
      break;
  }
  return waited;
}

// Copies right factors to the device if it does not have the host's, as in the first step.
void FactoredDeviceExchange::provide_right(FactoredBucket& bucket) const {
  const auto is_there = [](const Item& item) { return item.gradient->right.defined(); };
  if (std::ranges::all_of(bucket.items, is_there)) return;
  // The factors go through the room, which the device may still be reading.
  bucket.uploaded.wait();
  auto to = bucket.right().begin();
  for (const Item& item : bucket.items) {
    to = std::ranges::copy(item.gradient->factors.right, to).out;
  }
  const torch::Tensor all = upload(bucket, bucket.right());
  std::size_t first = 0;
  for (const Item& item : bucket.items) {
    item.gradient->right = right_of(all, first, item.gradient->factors);
    first += item.gradient->factors.right.size();
  }
}

void FactoredDeviceExchange::make_left(FactoredBucket& bucket) const {
  provide_right(bucket);
  std::vector<torch::Tensor> left, plain;
  for (const Item& item : bucket.items) {
    const FactoredGradient& gradient = *item.gradient;
    const Factors& factors = gradient.factors;
    if (item.residual.is_silent) {
      left.push_back(torch::zeros({static_cast<std::int64_t>(factors.left.size())},
                                  item.residual.values.options()));
      continue;
    }
    const torch::Tensor matrix = matrix_of(item.residual.values, factors.shape);
    left.push_back(matrix.mm(gradient.right.t()).reshape({-1}));
  }
  for (const View& view : bucket.plain) {
    plain.push_back(tensor_of(ConstByteSpan(view.span()), device_));
  }
  if (!left.empty()) bucket.made = torch::cat(left);
  if (!plain.empty()) bucket.made_plain = torch::cat(plain);
  bucket.done.emplace(device_);
  bucket.done->record(current_stream(device_));
  bucket.next = Next::add_left;
}

void FactoredDeviceExchange::add_left(FactoredBucket& bucket) {
  to_host_.move(bucket.made, *bucket.done, std::as_writable_bytes(bucket.left()));
  to_host_.move(bucket.made_plain, *bucket.done, bucket.plain_sum().span());
  bucket.sent = Clock::now();
  if (bucket.plain_bytes > 0) bucket.plain_work = add_up(bucket, bucket.plain_sum());
  bucket.next = bucket.items.empty() ? Next::nothing : Next::make_right;
  if (!bucket.items.empty()) bucket.work = add_up(bucket, view_of(bucket.left()));
}

void FactoredDeviceExchange::make_right(FactoredBucket& bucket) const {
  std::span<float> rest = bucket.left();
  for (const Item& item : bucket.items) {
    Factors& factors = item.gradient->factors;
    const std::span<float> sums = rest.first(factors.left.size());
    codec::orthonormalize(factors.shape.rows, factors.rank, sums);
    std::ranges::copy(sums, factors.left.begin());
    rest = rest.subspan(sums.size());
  }
  bucket.left_sums = upload(bucket, bucket.left());
  std::vector<torch::Tensor> right;
  std::size_t first = 0;
  for (const Item& item : bucket.items) {
    const Factors& factors = item.gradient->factors;
    right.push_back(right_of_item(item, left_of(bucket.left_sums, first, factors)).view({-1}));
    first += factors.left.size();
  }
  bucket.made = torch::cat(right);
  bucket.done->record(current_stream(device_));
  bucket.next = Next::add_right;
}

// The right factors of this rank, which are sent. Subtracts their product with the left ones from
// the residual, which keeps the rest.
torch::Tensor FactoredDeviceExchange::right_of_item(const Item& item,
                                                    const torch::Tensor& left) const {
  const Factors& factors = item.gradient->factors;
  const auto count = static_cast<std::int64_t>(factors.right.size());
  const torch::Tensor nothing = torch::zeros({count}, left.options());
  if (item.residual.is_silent || !codec::are_finite(factors.left)) return nothing;
  if (factors.found_nothing()) {
    // The last number says instead whether a rank has something that the left factors miss.
    nothing.narrow(0, count - 1, 1).copy_(item.residual.values.any());
    return nothing;
  }
  const torch::Tensor matrix = matrix_of(item.residual.values, factors.shape);
  const torch::Tensor right = left.t().mm(matrix);
  add_product(item.residual.values, factors.shape, left, right, -1);
  return right;
}

void FactoredDeviceExchange::add_right(FactoredBucket& bucket) {
  to_host_.move(bucket.made, *bucket.done, std::as_writable_bytes(bucket.right()));
  bucket.work = add_up(bucket, view_of(bucket.right()));
  bucket.next = Next::nothing;
}

ExchangedExtracts FactoredDeviceExchange::wait(const FullBucket& full) {
  STRETTO_CHECK(pending_.empty(), "bucket {} ends before its factors left", full.index);
  FactoredBucket& bucket = *buckets_[full.index];
  bucket.plain_work.wait();
  bucket.work.wait();
  const std::size_t left = bucket.left_count * sizeof(float);
  const std::size_t right = bucket.right_count * sizeof(float);
  return {
      .sent = bucket.sent,
      .sent_bytes = left + right,
      .received_bytes = 2 * (ranks() - 1) * left / ranks() + 2 * (ranks() - 1) * right / ranks(),
      .factors = bucket.left_count + bucket.right_count};
}

void FactoredDeviceExchange::finish(const FullBucket& full) {
  FactoredBucket& bucket = *buckets_[full.index];
  on_device([&] {
    const torch::NoGradGuard no_grad;
    if (!bucket.items.empty()) multiply(full, bucket, upload(bucket, bucket.right()));
    bucket.left_sums.reset();
    put_together(full, device_, {}, bucket.plain, upload(bucket, bucket.plain_sum().span()));
  });
  full.memory->publish();
  if (full.is_last()) buckets_.resize(full.index + 1);
}

void FactoredDeviceExchange::multiply(const FullBucket& full, FactoredBucket& bucket,
                                      const torch::Tensor& right) const {
  const torch::Tensor all = tensor_of(full.view, device_);
  std::size_t of_left = 0, of_right = 0;
  for (const Item& item : bucket.items) {
    FactoredGradient& gradient = *item.gradient;
    Factors& factors = gradient.factors;
    const std::span<const float> sums = bucket.right().subspan(of_right, factors.right.size());
    const torch::Tensor left_there = left_of(bucket.left_sums, of_left, factors);
    const torch::Tensor right_there = right_of(right, of_right, factors);
    of_left += factors.left.size();
    of_right += sums.size();
    const torch::Tensor values =
        part_of(all, item.residual.first, static_cast<std::size_t>(item.residual.values.numel()));
    values.zero_();
    if (factors.found_nothing()) {
      // A gradient that no rank has used, or that is zero, keeps its factors.
      if (sums.back() != 0) gradient.draw_right();
      continue;
    }
    std::ranges::copy(sums, factors.right.begin());
    gradient.right = right_there;
    if (has_product(factors)) {
      add_product(values, factors.shape, left_there, right_there, 1);
      if (factors.draw_zero_columns(gradient.key)) gradient.right.reset();
      continue;
    }
    // All ranks have the same factors, and begin anew together.
    values.fill_(std::numeric_limits<double>::quiet_NaN());
    item.residual.values.zero_();
    gradient.draw_right();
  }
}

}  // namespace

std::unique_ptr<ExtractExchange> factored_exchange_by_host(std::size_t rank, torch::Device device) {
  return std::make_unique<FactoredDeviceExchange>(rank, device);
}

}  // namespace stretto::ddp

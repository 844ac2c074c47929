// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/tensor_bytes.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "stretto/base/refuse.h"
#include "stretto/torch/tensors.h"
#include "stretto/torch_device/gradient_description.h"

namespace stretto {

View view_of(const torch::Tensor& tensor) {
  if (!tensor.defined()) refuse("the tensor is undefined");
  if (!tensor.device().is_cpu())
    refuse("the tensor is on {}, not on the CPU", tensor.device().str());
  if (tensor.layout() != torch::kStrided) refuse("the tensor is not dense; see all_reduce_rows()");
  if (!ddp::is_block(tensor))
    refuse("the tensor does not fill its memory; use tensor.contiguous()");
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.numel()),
          ddp::dtype_of_tensor(tensor).or_throw()};
}

namespace ddp {

std::vector<torch::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<torch::Tensor> tensors;
  for (const NamedTensor& item : named) tensors.push_back(item.tensor);
  return tensors;
}

namespace {

// Bytes of tensors that are gathered together, which takes as much memory of the device.
constexpr std::size_t kGatheredBytes = std::size_t{64} << 20;
// Bytes that one operation sends; it has one deadline, and memory for all its short tensors.
constexpr std::size_t kBroadcastBytes = std::size_t{32} << 20;

}  // namespace

bool is_block(const torch::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
}

TensorBytes::TensorBytes(std::vector<torch::Tensor> tensors)
    : tensors_(std::move(tensors)), blocks_(tensors_.size()) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    torch::Tensor& tensor = tensors_[i];
    tensor = tensor.detach();
    if (!tensor.device().is_cpu()) {
      gather(i);
    } else {
      blocks_[i] = is_block(tensor) ? tensor : tensor.resolve_conj().resolve_neg().contiguous();
    }
  }
  for (Gathered& gathered : gathered_) copy_to_host(gathered);
  for (const torch::Tensor& block : blocks_) {
    spans_.emplace_back(static_cast<std::byte*>(block.data_ptr()), block.nbytes());
  }
}

void TensorBytes::gather(std::size_t index) {
  const auto is_like_it = [&](const Gathered& gathered) {
    const torch::Tensor& first = tensors_[gathered.indices.front()];
    return first.device() == tensors_[index].device() &&
           first.scalar_type() == tensors_[index].scalar_type() &&
           gathered.bytes + tensors_[index].nbytes() <= kGatheredBytes;
  };
  auto found = std::ranges::find_if(gathered_, is_like_it);
  if (found == gathered_.end()) found = gathered_.insert(found, Gathered());
  found->indices.push_back(index);
  found->bytes += tensors_[index].nbytes();
}

void TensorBytes::copy_to_host(Gathered& gathered) {
  std::vector<torch::Tensor> parts;
  for (const std::size_t i : gathered.indices) {
    parts.push_back(tensors_[i].resolve_conj().resolve_neg().reshape(-1));
  }
  gathered.block = (parts.size() == 1 ? parts.front() : torch::cat(parts)).cpu();
  std::int64_t at = 0;
  for (const std::size_t i : gathered.indices) {
    blocks_[i] = gathered.block.narrow(0, at, tensors_[i].numel()).view(tensors_[i].sizes());
    at += tensors_[i].numel();
  }
}

View TensorBytes::view(std::size_t index) const {
  const torch::Tensor& tensor = tensors_[index];
  return {spans_[index].data(), static_cast<std::size_t>(tensor.numel()),
          dtype_of_tensor(tensor).or_throw()};
}

void TensorBytes::write_back() {
  for (const Gathered& gathered : gathered_) {
    const bool is_alone = gathered.indices.size() == 1;
    const torch::Tensor there =
        is_alone ? gathered.block : gathered.block.to(tensors_[gathered.indices.front()].device());
    std::vector<torch::Tensor> targets, parts;
    for (const std::size_t i : gathered.indices) {
      const auto at = blocks_[i].storage_offset() - gathered.block.storage_offset();
      targets.push_back(tensors_[i]);
      parts.push_back(there.narrow(0, at, tensors_[i].numel()).view(tensors_[i].sizes()));
    }
    at::_foreach_copy_(targets, parts);
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const bool is_copy = tensors_[i].device().is_cpu() && !tensors_[i].is_same(blocks_[i]);
    if (is_copy) tensors_[i].copy_(blocks_[i]);
  }
}

void TensorBytes::broadcast(Communicator& communicator, const BroadcastOptions& options) {
  std::vector<View> views;  // As bytes, so that tensors of several types travel together.
  std::size_t bytes = 0;
  const auto send = [&] {
    communicator.broadcast_coalesced(views, options).wait();
    views.clear();
    bytes = 0;
  };
  for (ByteSpan rest : spans_) {
    while (!rest.empty()) {
      const ByteSpan part = rest.first(std::min(rest.size(), kBroadcastBytes - bytes));
      views.push_back(view_of(part));
      bytes += part.size();
      rest = rest.subspan(part.size());
      if (bytes == kBroadcastBytes) send();
    }
  }
  if (!views.empty()) send();
  write_back();
}

}  // namespace ddp
}  // namespace stretto

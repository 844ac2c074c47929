// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/c10d/sparse_tensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stretto/base/error.h"
#include "stretto/communicator/all_gather_value.h"
#include "stretto/reducer/sparse_rows.h"

namespace stretto::c10d_backend {
namespace {

// A sparse tensor as rows of a matrix. `places` has the number of each row: its index into the
// sparse dimensions, counted in the order of a dense tensor.
struct PlacedRows {
  explicit PlacedRows(const at::Tensor& tensor) {
    const at::Tensor own = tensor.coalesce();
    places = at::zeros({own._nnz()}, at::kLong);
    for (int64_t dim = 0; dim < own.sparse_dim(); ++dim) {
      places = places * own.size(dim) + own.indices()[dim];
      height *= own.size(dim);
    }
    for (int64_t dim = own.sparse_dim(); dim < own.dim(); ++dim) width *= own.size(dim);
    rows = own.values().reshape({own._nnz(), width}).contiguous();
  }

  at::Tensor places;
  at::Tensor rows;
  int64_t width = 1;
  int64_t height = 1;
};

// Rows are numbered in 32 bits.
void check_places(const at::Tensor& tensor) {
  constexpr double kMost = std::numeric_limits<std::uint32_t>::max();
  double places = 1;
  for (int64_t dim = 0; dim < tensor.sparse_dim(); ++dim) {
    places *= static_cast<double>(tensor.size(dim));
  }
  if (places <= kMost) return;
  throw InvalidArgument(
      status_of(StatusCode::invalid_argument,
                "all_reduce of sparse tensors: the sparse dimensions of [{}] have {:.0f} places, "
                "and may have {:.0f}; make the tensor with one sparse dimension",
                fmt::join(tensor.sizes(), ", "), places, kMost));
}

// On ranks with other shapes, the same number would mean another place.
void check_same_shape(Communicator& comm, const at::Tensor& tensor,
                      const std::optional<Duration>& timeout) {
  std::array<char, 128> own{};  // Only so many characters are compared.
  const std::string text =
      fmt::format("[{}], of which {} sparse", fmt::join(tensor.sizes(), ", "), tensor.sparse_dim());
  text.copy(own.data(), own.size() - 1);
  const auto all = communicator::all_gather_value(comm, own, timeout);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw InvalidArgument(
        status_of(StatusCode::invalid_argument,
                  "all_reduce of sparse tensors: the dimensions on rank 0 are {}; on rank {}: {}",
                  all[0].data(), rank, all[rank].data()));
  }
}

using ReduceRows = void (*)(Communicator&, const PlacedRows&, const SparseOptions&, at::Tensor&);

template <class T>
void reduce_rows(Communicator& comm, const PlacedRows& mine, const SparseOptions& options,
                 at::Tensor& tensor) {
  const auto* const place = mine.places.const_data_ptr<int64_t>();
  const auto* const value = mine.rows.const_data_ptr<T>();
  const SparseRows<T> own{.rows = {place, place + mine.places.numel()},
                          .values = {value, value + mine.rows.numel()}};
  const SparseRows<T> all = all_reduce_rows(comm, own, options);
  const auto count = static_cast<int64_t>(all.rows.size());
  at::Tensor remaining = at::empty({count}, at::kLong);
  std::copy(all.rows.begin(), all.rows.end(), remaining.mutable_data_ptr<int64_t>());
  std::vector<int64_t> shape = tensor._values().sizes().vec();
  shape[0] = count;
  const at::Tensor values = at::empty(shape, mine.rows.options());
  std::copy(all.values.begin(), all.values.end(), values.mutable_data_ptr<T>());
  const at::Tensor indices = at::empty({tensor.sparse_dim(), count}, at::kLong);
  for (int64_t dim = tensor.sparse_dim() - 1; dim >= 0; --dim) {
    indices[dim].copy_(remaining.remainder(tensor.size(dim)));
    remaining = remaining.floor_divide(tensor.size(dim));
  }
  tensor.copy_(at::sparse_coo_tensor(indices, values, tensor.sizes())._coalesced_(true));
}

// Null for types that cannot be added up.
ReduceRows reduce_rows_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return reduce_rows<float>;
    case at::kDouble:
      return reduce_rows<double>;
    case at::kInt:
      return reduce_rows<int32_t>;
    case at::kLong:
      return reduce_rows<int64_t>;
    default:
      return nullptr;
  }
}

}  // namespace

bool has_sparse_sum(at::ScalarType type) { return reduce_rows_of(type) != nullptr; }

void all_reduce_sparse(Communicator& comm, at::Tensor& tensor, ReduceOp op,
                       const std::optional<Duration>& timeout) {
  check_same_shape(comm, tensor, timeout);
  check_places(tensor);
  const PlacedRows mine(tensor);
  reduce_rows_of(tensor.scalar_type())(comm, mine,
                                       {.row_elements = static_cast<std::size_t>(mine.width),
                                        .matrix_rows = static_cast<std::size_t>(mine.height),
                                        .op = op,
                                        .timeout = timeout},
                                       tensor);
}

}  // namespace stretto::c10d_backend

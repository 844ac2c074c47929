// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/torch/sparse_gradients.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "stretto/base/refuse.h"
#include "stretto/reducer/sparse_rows.h"
#include "stretto/torch/devices.h"

namespace stretto::ddp {
namespace {

// Returns the gradient with one sparse dimension, since ranks' gradients may have different numbers
// of sparse dimensions. If it has several, the result is coalesced.
torch::Tensor by_rows(const torch::Tensor& gradient) {
  if (gradient.layout() != torch::kSparse) return gradient.to_sparse(1);
  if (gradient.sparse_dim() == 1) return gradient;
  const torch::Tensor indices = gradient._indices();
  const auto [rows, row_of, counts] = at::_unique2(indices[0], /*sorted=*/true,
                                                   /*return_inverse=*/true);
  std::vector<std::int64_t> shape = gradient.sizes().vec();
  shape[0] = rows.numel();
  torch::Tensor values = torch::zeros(shape, gradient._values().options());
  c10::List<std::optional<torch::Tensor>> places;
  places.push_back(row_of);
  for (std::int64_t dim = 1; dim < gradient.sparse_dim(); ++dim) places.push_back(indices[dim]);
  values.index_put_(places, gradient._values(), /*accumulate=*/true);
  return torch::sparse_coo_tensor(rows.unsqueeze(0), values, gradient.sizes())._coalesced_(true);
}

template <class T>
SparseRows<T> rows_of(const torch::Tensor& gradient) {
  if (!gradient.defined()) return {};
  const torch::Tensor coalesced = by_rows(gradient).coalesce();
  const torch::Tensor rows = coalesced.indices().flatten().contiguous();
  // If the parameter was converted, its gradient may still have the former type.
  const torch::Tensor values = coalesced.values().to(c10::CppTypeToScalarType<T>()).contiguous();
  const auto* const row = rows.const_data_ptr<std::int64_t>();
  const T* const value = values.const_data_ptr<T>();
  return {{row, row + rows.numel()}, {value, value + values.numel()}};
}

template <class T>
torch::Tensor tensor_of(SparseRows<T>& sum, const torch::Tensor& parameter) {
  const auto count = static_cast<std::int64_t>(sum.rows.size());
  std::vector<std::int64_t> shape = parameter.sizes().vec();
  shape[0] = count;
  const torch::Tensor rows = torch::from_blob(sum.rows.data(), {1, count}, torch::kLong).clone();
  const torch::Tensor values =
      torch::from_blob(sum.values.data(), shape, parameter.scalar_type()).clone();
  return torch::sparse_coo_tensor(rows, values, parameter.sizes())._coalesced_(true);
}

using RowsReduction = std::variant<SparseRowsWork<float>, SparseRowsWork<double>>;

template <class T>
RowsReduction start_reduction(Communicator& communicator, const NamedTensor& parameter,
                              bool with_data, const std::optional<Duration>& timeout) {
  const std::int64_t rows = parameter.tensor.size(0);
  const std::int64_t elements = rows == 0 ? 1 : parameter.tensor.numel() / rows;
  return start_all_reduce_rows(communicator,
                               with_data ? rows_of<T>(parameter.tensor.grad()) : SparseRows<T>(),
                               {.row_elements = static_cast<std::size_t>(elements),
                                .matrix_rows = static_cast<std::size_t>(rows),
                                .op = ReduceOp::mean,
                                .timeout = timeout});
}

template <class T>
void finish_reduction(SparseRows<T> sum, NamedTensor& parameter, double scale) {
  if (scale != 1) {
    for (T& value : sum.values) value *= static_cast<T>(scale);
  }
  parameter.tensor.mutable_grad() = tensor_of(sum, parameter.tensor);
}

// For parameters for which no rank has rows. Optimizers skip a parameter with an undefined
// gradient, but not one whose gradient has no rows, as an EmbeddingBag without indices makes it.
// One process with the batches of all ranks would have a gradient without rows if any rank has one.
void finish_without_rows(Communicator& communicator, const std::vector<NamedTensor*>& parameters,
                         bool with_data, const std::optional<Duration>& timeout) {
  if (parameters.empty()) return;
  std::vector<std::uint8_t> has_gradient;
  for (const NamedTensor* const parameter : parameters) {
    has_gradient.push_back(with_data && parameter->tensor.grad().defined() ? 1 : 0);
  }
  communicator.all_reduce(has_gradient, {.op = ReduceOp::max, .timeout = timeout}).wait();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (with_data && has_gradient[i] != 0) finish_reduction(SparseRows<float>(), *parameters[i], 1);
  }
}

}  // namespace

std::vector<std::string> sparse_parameter_names(const torch::nn::Module& module) {
  std::vector<std::string> names;
  const auto look = [&](const torch::nn::Module& part, const std::string& name) {
    const auto* const embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&part);
    const auto* const bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&part);
    const bool is_sparse = (embedding != nullptr && embedding->options.sparse()) ||
                           (bag != nullptr && bag->options.sparse());
    if (is_sparse) names.push_back(name + "weight");
  };
  look(module, "");
  for (const auto& item : module.named_modules(std::string(), /*include_self=*/false)) {
    look(*item.value(), item.key() + ".");
  }
  return names;
}

void check_sparse_gradients(const std::vector<NamedTensor>& parameters) {
  check_on_cpu(parameters, "reduction of sparse gradients");
  for (const auto& [name, parameter] : parameters) {
    const torch::ScalarType dtype = parameter.scalar_type();
    if (dtype != torch::kFloat && dtype != torch::kDouble) {
      refuse("parameter '{}' has sparse gradients of type {}; only Float and Double are supported",
             name, c10::toString(dtype));
    }
    if (parameter.dim() == 0) {
      refuse("parameter '{}' is a scalar, which has no rows; its gradient cannot be sparse", name);
    }
  }
}

void reduce_sparse_gradients(Communicator& communicator, std::vector<NamedTensor>& parameters,
                             bool with_data, double scale, const std::optional<Duration>& timeout) {
  const torch::NoGradGuard no_grad;
  std::vector<RowsReduction> reductions;
  for (const NamedTensor& parameter : parameters) {
    const bool is_double = parameter.tensor.scalar_type() == torch::kDouble;
    reductions.push_back(is_double
                             ? start_reduction<double>(communicator, parameter, with_data, timeout)
                             : start_reduction<float>(communicator, parameter, with_data, timeout));
  }
  for (RowsReduction& reduction : reductions) {
    std::visit([](auto& work) { work.send(); }, reduction);
  }
  std::vector<NamedTensor*> without_rows;
  for (std::size_t i = 0; i < reductions.size(); ++i) {
    const auto finish = [&](auto& work) {
      auto sum = work.wait();
      if (sum.rows.empty()) return without_rows.push_back(&parameters[i]);
      if (with_data) finish_reduction(std::move(sum), parameters[i], scale);
    };
    std::visit(finish, reductions[i]);
  }
  finish_without_rows(communicator, without_rows, with_data, timeout);
}

}  // namespace stretto::ddp

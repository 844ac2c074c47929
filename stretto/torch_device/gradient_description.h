// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "stretto/base/dtype.h"
#include "stretto/base/status.h"
#include "stretto/reducer/communication_hook.h"

namespace stretto::ddp {

// The stretto type of a tensor's elements; invalid_argument for those it cannot move (quantized,
// complex of half precision, ...). docs/dtypes.md has the table.
Result<DType> dtype_of_tensor(const at::Tensor& tensor);

// What hooks are told of the gradient of `parameter`. The gradient lies in memory as the parameter
// does, or row by row if that has gaps; its rows are the dimension with the greatest stride. Throws
// InvalidArgument if stretto has no such type.
GradientDescription description_of(const std::string& name, const at::Tensor& parameter);

}  // namespace stretto::ddp

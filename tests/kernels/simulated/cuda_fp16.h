// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/base/half.h"

using __half = stretto::Half;
inline __half __float2half_rn(float value) { return __half(value); }

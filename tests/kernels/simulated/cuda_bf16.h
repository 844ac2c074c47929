// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include "stretto/base/half.h"

using __nv_bfloat16 = stretto::BFloat16;
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return __nv_bfloat16(value); }

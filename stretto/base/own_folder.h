// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

namespace stretto {

// The folder of the library or program that contains this code, with a slash at the end. Libraries
// that are loaded on demand lie in the same folder. Empty if the system does not tell.
std::string own_folder();

}  // namespace stretto

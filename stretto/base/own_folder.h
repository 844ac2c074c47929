// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <string>

namespace stretto {

// Where this code lies, in a library or in the program, with a slash behind it: what is loaded when
// it is wanted lies there, too. Empty if the system does not say.
std::string own_folder();

}  // namespace stretto

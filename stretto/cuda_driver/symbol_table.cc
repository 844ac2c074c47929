// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda_driver/symbol_table.h"

#include <dlfcn.h>

namespace stretto::cuda {

Result<SymbolTable> SymbolTable::open(const std::vector<std::string>& files) {
  std::string said;
  for (const std::string& file : files) {
    void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return SymbolTable(file, library);
    said += (said.empty() ? "" : "; ") + std::string(::dlerror());
  }
  return Status(StatusCode::invalid_argument, said);
}

Status SymbolTable::find_all(std::initializer_list<Symbol> symbols) const {
  for (const Symbol& symbol : symbols) {
    *symbol.address = ::dlsym(library_, symbol.name);
    if (*symbol.address == nullptr) {
      return status_of(StatusCode::invalid_argument, "{} has no function {}", file_, symbol.name);
    }
  }
  return {};
}

}  // namespace stretto::cuda

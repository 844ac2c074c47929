// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda_driver/symbol_table.h"

#include <dlfcn.h>

#include <utility>

#include "stretto/base/open_library.h"

namespace stretto::cuda {

Result<SymbolTable> SymbolTable::open(const std::vector<std::string>& files) {
  STRETTO_ASSIGN_OR_RETURN(OpenedLibrary opened, open_library(files, RTLD_LOCAL));
  return SymbolTable(std::move(opened.file), opened.handle);
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

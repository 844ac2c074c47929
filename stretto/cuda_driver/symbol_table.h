// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "stretto/base/status.h"

namespace stretto::cuda {

// A shared library that stays loaded. Other libraries do not see its symbols.
class SymbolTable {
 public:
  // Loads the first of `files` that can be loaded. Fails with invalid_argument and the system's
  // text for each.
  static Result<SymbolTable> open(const std::vector<std::string>& files);

  // The file that was loaded.
  const std::string& file() const { return file_; }
  // A name, and where the address of that function goes.
  struct Symbol {
    template <class Function>
    Symbol(const char* called, Function** to)
        : name(called), address(reinterpret_cast<void**>(to)) {}
    const char* name;
    void** address;
  };
  // Fails with invalid_argument, naming the first that is missing.
  Status find_all(std::initializer_list<Symbol> symbols) const;

 private:
  SymbolTable(std::string file, void* library) : file_(std::move(file)), library_(library) {}

  std::string file_;
  void* library_;
};

}  // namespace stretto::cuda

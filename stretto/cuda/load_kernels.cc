// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/cuda/load_kernels.h"

#include <string>
#include <vector>

#include "stretto/base/own_folder.h"
#include "stretto/cuda_driver/symbol_table.h"

namespace stretto::cuda {
namespace {

// `who` is "the backend ... needs".
Result<SymbolTable> open_library(const Environment& environment, const char* who) {
  const std::string file = "libstretto_cuda_kernels.so";
  std::vector<std::string> files = {own_folder() + file, file};
  if (const auto named = environment.get("STRETTO_CUDA_KERNELS")) files = {*named};
  Result<SymbolTable> symbols = SymbolTable::open(files);
  if (symbols.ok()) return symbols;
  return status_of(StatusCode::invalid_argument,
                   "{} stretto's kernels for GPUs, which cannot be loaded ({}): {} is built where "
                   "CMake finds nvcc, and STRETTO_CUDA_KERNELS says where it is",
                   who, symbols.status().message(), file);
}

}  // namespace

Result<Kernels> load_kernels(const Environment& environment) {
  STRETTO_ASSIGN_OR_RETURN(const SymbolTable symbols,
                           open_library(environment, "the backend \"cuda\" needs"));
  Kernels kernels;
  STRETTO_RETURN_IF_ERROR(symbols.find_all({{kProbe, &kernels.probe}, {kReduce, &kernels.reduce}}));
  return kernels;
}

Result<CodecKernels> load_codec_kernels(const Environment& environment) {
  STRETTO_ASSIGN_OR_RETURN(const SymbolTable symbols,
                           open_library(environment, "codecs are faster with"));
  CodecKernels kernels;
  STRETTO_RETURN_IF_ERROR(symbols.find_all({{kProbe, &kernels.probe},
                                            {kSelect, &kernels.select},
                                            {kRound, &kernels.round},
                                            {kAdd, &kernels.add}}));
  return kernels;
}

}  // namespace stretto::cuda

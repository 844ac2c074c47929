// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/mpi/plane.h"

#include <dlfcn.h>

#include <array>
#include <string_view>

#include <fmt/format.h>

#include "stretto/base/log.h"

namespace stretto::transport::mpi {
namespace {

constexpr const char* kFile = "libstretto_mpi.so";

// Where this code lies: in a library, or in the program.
std::string own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&load_plugin), &info) == 0) return "";
  const std::string_view path = info.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? "" : std::string(path.substr(0, slash + 1));
}

// An MPI library loads parts of itself, which look for its symbols among those of the process.
void* open_library(const std::string& path) {
  return ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
}

}  // namespace

Result<Plugin> load_plugin(const std::string& path) {
  void* library = open_library(path.empty() ? own_folder() + kFile : path);
  // Who has named a file means that one.
  if (library == nullptr && path.empty()) library = open_library(kFile);
  if (library == nullptr) {
    return status_of(StatusCode::invalid_argument,
                     "the plug-in for MPI cannot be loaded ({}): {} is built where CMake finds an "
                     "MPI, and STRETTO_MPI_PLUGIN says where it is",
                     ::dlerror(), kFile);
  }
  void* const symbol = ::dlsym(library, kMakeEngine);
  if (symbol != nullptr) return Plugin{reinterpret_cast<MakeEngine>(symbol)};
  return status_of(StatusCode::invalid_argument,
                   "{} is no plug-in for MPI of this version of stretto",
                   path.empty() ? kFile : path.c_str());
}

Result<std::unique_ptr<DataPlane>> make_plane(const Plugin& plugin, const EngineOptions& options,
                                              std::size_t packets_max) {
  std::array<char, 512> text{};
  std::unique_ptr<Engine> engine(plugin.make_engine(options, text.data(), text.size()));
  if (engine == nullptr) return status_of(StatusCode::invalid_argument, "{}", text.data());
  log(LogLevel::info, "messages are moved by {}", engine->library());
  auto streams =
      std::make_unique<MpiStreams>(std::move(engine), options.rank, options.size, packets_max);
  return std::unique_ptr<DataPlane>(
      std::make_unique<StreamPlane>(options.rank, options.size, std::move(streams)));
}

}  // namespace stretto::transport::mpi

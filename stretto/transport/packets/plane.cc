// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/transport/packets/plane.h"

#include <dlfcn.h>

#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "stretto/base/log.h"
#include "stretto/base/open_library.h"
#include "stretto/base/own_folder.h"
#include "stretto/transport/packets/stream_plane.h"

namespace stretto::transport::packets {
namespace {

// What a plug-in makes, or why it does not.
template <class Made, class Options>
Result<std::unique_ptr<Made>> make_by(Made* (*make)(const Options&, char*, std::size_t),
                                      const Options& options, std::string_view without_it) {
  if (make == nullptr) {
    return status_of(StatusCode::invalid_argument, "this plug-in {}", without_it);
  }
  std::array<char, 512> text{};
  std::unique_ptr<Made> made(make(options, text.data(), text.size()));
  if (made == nullptr) return status_of(StatusCode::invalid_argument, "{}", text.data());
  return made;
}

}  // namespace

Result<Plugin> load_plugin(std::string_view name, const std::string& path) {
  const std::string file = fmt::format("libstretto_{}.so", name);
  // A caller that names a file means that one.
  const std::vector<std::string> candidates =
      path.empty() ? std::vector{own_folder() + file, file} : std::vector{path};
  // MPI and UCX load parts of themselves, which look for symbols among those of the process.
  Result<OpenedLibrary> opened = open_library(candidates, RTLD_GLOBAL);
  if (!opened.ok()) {
    return status_of(StatusCode::invalid_argument,
                     "the plug-in for {} cannot be loaded ({}): {} is built where CMake finds that "
                     "library, and STRETTO_PLUGIN says where it is",
                     name, opened.status().message(), file);
  }
  const Plugin plugin{reinterpret_cast<MakeEngine>(::dlsym(opened->handle, kMakeEngine)),
                      reinterpret_cast<MakeLibrary>(::dlsym(opened->handle, kMakeLibrary))};
  if (plugin.make_engine != nullptr || plugin.make_library != nullptr) return plugin;
  return status_of(StatusCode::invalid_argument,
                   "{} is no plug-in for {} of this version of stretto", path.empty() ? file : path,
                   name);
}

Result<std::unique_ptr<CollectiveLibrary>> make_library(const Plugin& plugin,
                                                        const LibraryGroup& group) {
  STRETTO_ASSIGN_OR_RETURN(auto library, make_by(plugin.make_library, group, "has no collectives"));
  log(LogLevel::info, "collectives are run by {}", library->name());
  return library;
}

Result<std::unique_ptr<Engine>> make_engine(const Plugin& plugin, const EngineOptions& options) {
  return make_by(plugin.make_engine, options, "moves no messages");
}

Result<std::unique_ptr<DataPlane>> make_plane(std::unique_ptr<Engine> engine,
                                              const EngineOptions& options,
                                              const std::vector<std::string>& addresses,
                                              std::size_t packets_max) {
  std::vector<const char*> texts;
  for (const std::string& address : addresses) texts.push_back(address.c_str());
  engine->connect(texts.data());
  if (*engine->failure() != '\0') {
    return status_of(StatusCode::system, "{}: {}", engine->library(), engine->failure());
  }
  log(LogLevel::info, "messages are moved by {}", engine->library());
  auto streams =
      std::make_unique<PacketStreams>(std::move(engine), options.rank, options.size, packets_max);
  return std::unique_ptr<DataPlane>(
      std::make_unique<StreamPlane>(options.rank, options.size, std::move(streams)));
}

}  // namespace stretto::transport::packets

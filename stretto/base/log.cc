// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/log.h"

#include <atomic>
#include <memory>
#include <mutex>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "stretto/base/environment.h"

namespace stretto {
namespace {

struct Log {
  std::mutex mutex;
  std::string prefix = "stretto";
  std::atomic<LogLevel> threshold{LogLevel::warning};
  std::shared_ptr<spdlog::logger> logger = std::make_shared<spdlog::logger>(
      "stretto", std::make_shared<spdlog::sinks::stderr_sink_mt>());

  Log() {
    logger->set_pattern("%v");
    logger->set_level(spdlog::level::trace);
    logger->flush_on(spdlog::level::trace);
  }
};

Log& instance() {
  static Log log;
  return log;
}

std::string_view name(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return "debug";
    case LogLevel::info:
      return "info";
    case LogLevel::warning:
      return "warning";
    case LogLevel::error:
      return "error";
    case LogLevel::off:
      return "off";
  }
  return "unknown level";
}

}  // namespace

bool log_enabled(LogLevel level) {
  return level >= instance().threshold.load(std::memory_order_relaxed);
}

void log_line(LogLevel level, std::string_view text) {
  Log& log = instance();
  const std::lock_guard lock(log.mutex);
  log.logger->info("{} {}: {}", log.prefix, name(level), text);
}

void configure_log(const Environment& environment, std::string prefix) {
  Log& log = instance();
  const std::lock_guard lock(log.mutex);
  log.prefix = std::move(prefix);
  const auto wanted = environment.get("STRETTO_LOG");
  if (!wanted) return;
  for (LogLevel level :
       {LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error, LogLevel::off}) {
    if (*wanted == name(level)) {
      log.threshold.store(level, std::memory_order_relaxed);
      return;
    }
  }
  log.logger->info("{} warning: STRETTO_LOG={} is not one of debug, info, warning, error, off",
                   log.prefix, *wanted);
}

}  // namespace stretto

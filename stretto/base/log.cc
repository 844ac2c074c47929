// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/base/log.h"

#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include "stretto/base/environment.h"

namespace stretto {
namespace {

class Sink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void use(LogSink replacement) {
    const std::lock_guard lock(mutex_);
    sink_ = std::move(replacement);
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    const auto level = static_cast<LogLevel>(message.level - spdlog::level::debug);
    if (sink_) return sink_(level, {line.data(), line.size()});
    line.push_back('\n');
    (void)std::fwrite(line.data(), 1, line.size(), stderr);
  }
  void flush_() override { (void)std::fflush(stderr); }

  LogSink sink_;
};

struct Log {
  std::shared_ptr<Sink> sink = std::make_shared<Sink>();
  spdlog::logger logger{"stretto", sink};

  Log() {
    set_prefix("stretto");
    logger.set_level(spdlog::level::warn);
    logger.flush_on(spdlog::level::trace);
  }
  void set_prefix(const std::string& prefix) {
    logger.set_formatter(std::make_unique<spdlog::pattern_formatter>(
        prefix + " %l: %v", spdlog::pattern_time_type::local, ""));
  }
};

Log& instance() {
  static Log* const log = new Log;  // Never destroyed: code that runs after main() may log.
  return *log;
}

spdlog::level::level_enum level_of(LogLevel level) {
  if (level == LogLevel::off) return spdlog::level::off;
  return static_cast<spdlog::level::level_enum>(spdlog::level::debug + static_cast<int>(level));
}
static_assert(spdlog::level::err == spdlog::level::debug + static_cast<int>(LogLevel::error));

std::optional<spdlog::level::level_enum> level_named(std::string_view wanted) {
  for (const auto level : {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                           spdlog::level::err, spdlog::level::off}) {
    if (wanted == spdlog::level::to_string_view(level)) return level;
  }
  return std::nullopt;
}

}  // namespace

void set_log_sink(LogSink sink) { instance().sink->use(std::move(sink)); }

bool log_enabled(LogLevel level) { return instance().logger.should_log(level_of(level)); }

void log_line(LogLevel level, std::string_view text) {
  instance().logger.log(level_of(level), spdlog::string_view_t(text.data(), text.size()));
}

void configure_log(const Environment& environment, const std::string& prefix) {
  Log& log = instance();
  log.set_prefix(prefix);
  const auto wanted = environment.get("STRETTO_LOG");
  if (!wanted) return;
  if (const auto level = level_named(*wanted)) return log.logger.set_level(*level);
  log_line(LogLevel::warning, mistake_of_log_level(environment));
}

std::string mistake_of_log_level(const Environment& environment) {
  const auto wanted = environment.get("STRETTO_LOG");
  if (!wanted || level_named(*wanted)) return "";
  return fmt::format("STRETTO_LOG={} is not one of debug, info, warning, error, off", *wanted);
}

}  // namespace stretto

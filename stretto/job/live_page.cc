// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/job/live_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "stretto/base/parse_number.h"
#include "stretto/base/sealed_memory.h"
#include "stretto/base/take_word.h"

namespace stretto::job {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "stretto-live";
// What /proc/PID/fd shows for such a file.
constexpr std::string_view kLink = "/memfd:stretto-live (deleted)";

// The note on the page; nothing if it cannot be read.
std::optional<LiveNote> read_page(const fs::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0) return std::nullopt;
  // Sealed: it cannot get shorter while it is read.
  if (!is_sealed_memory(file.get()) || status.st_size != sizeof(StatusSlot)) return std::nullopt;
  void* const page = ::mmap(nullptr, sizeof(StatusSlot), PROT_READ, MAP_SHARED, file.get(), 0);
  if (page == MAP_FAILED) return std::nullopt;
  const StatusSlot& slot = *static_cast<const StatusSlot*>(page);
  std::optional<LiveNote> note;
  if (!slot.is_empty()) note = decode_live_note(slot.read());
  ::munmap(page, sizeof(StatusSlot));
  return note;
}

// The pid by which the process knows itself: in a container, the last one of NSpid. -1 if it is
// gone.
int own_number_of(const fs::path& process) {
  std::ifstream status(process / "status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("NSpid:")) continue;
    return parse_number<int>(std::string_view(line).substr(line.rfind('\t') + 1)).value_or(-1);
  }
  return -1;
}

void find_notes_of(const fs::path& process, int pid, std::vector<LiveNote>& notes) {
  std::error_code ignored;
  for (fs::directory_iterator entry(process / "fd", ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    if (fs::read_symlink(entry->path(), ignored) != kLink) continue;
    std::optional<LiveNote> note = read_page(entry->path());
    // A child that was forked has its parent's page open, too, and may outlive it.
    if (!note || note->pid != own_number_of(process)) continue;
    note->pid = pid;
    notes.push_back(std::move(*note));
  }
}

}  // namespace

std::string encode(const LiveRank& who, int pid, const group::LiveState& state) {
  return fmt::format("{} {} {} {} {} {} {}", who.rank, who.size, pid,
                     std::chrono::nanoseconds(state.waited).count(), state.collectives, who.job,
                     state.doing);
}

std::optional<LiveNote> decode_live_note(const StatusNote& note) {
  std::string_view text = note.text;
  const auto rank = parse_number<int>(take_word(text, ' '));
  const auto size = parse_number<int>(take_word(text, ' '));
  const auto pid = parse_number<int>(take_word(text, ' '));
  const auto waited_ns = parse_number<std::int64_t>(take_word(text, ' '));
  const auto collectives = parse_number<std::uint64_t>(take_word(text, ' '));
  const std::string_view job = take_word(text, ' ');
  if (!rank || !size || !pid || !waited_ns || !collectives || job.empty()) return std::nullopt;
  if (*rank < 0 || *rank >= *size || *waited_ns < 0) return std::nullopt;
  if (note.written < TimePoint()) return std::nullopt;
  return LiveNote{.who = {std::string(job), *rank, *size},
                  .pid = *pid,
                  .written = note.written,
                  .state = {.waited = std::chrono::nanoseconds(*waited_ns),
                            .collectives = *collectives,
                            .doing = std::string(text)}};
}

Result<LivePage> LivePage::create(LiveRank who) {
  LivePage page;
  STRETTO_ASSIGN_OR_RETURN(page.fd_, make_sealed_memory(kName, sizeof(StatusSlot)));
  STRETTO_ASSIGN_OR_RETURN(page.mapping_, map_shared_memory(page.fd_.get(), sizeof(StatusSlot)));
  page.who_ = std::move(who);
  return page;
}

void LivePage::write(const group::LiveState& state) {
  static_cast<StatusSlot*>(mapping_.get())->write(encode(who_, ::getpid(), state));
}

std::vector<LiveNote> find_live_notes() {
  std::vector<LiveNote> notes;
  std::error_code ignored;
  for (fs::directory_iterator entry("/proc", ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    const auto pid = parse_number<int>(entry->path().filename().native());
    if (pid) find_notes_of(entry->path(), *pid, notes);
  }
  std::ranges::sort(notes, {}, [](const LiveNote& note) {
    return std::tuple(note.who.job, note.who.size, note.who.rank, note.pid);
  });
  return notes;
}

}  // namespace stretto::job

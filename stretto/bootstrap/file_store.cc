// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <thread>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/file_size_signal.h"
#include "stretto/bootstrap/file_log.h"
#include "stretto/bootstrap/store_contents.h"

namespace stretto::bootstrap {
namespace {

// Between two looks at the file: short at first, for what is waited for is often just coming.
constexpr Duration kFirstPause = std::chrono::milliseconds(1);
constexpr Duration kLongestPause = std::chrono::milliseconds(20);

// Holds the lock on an open file, if it could be had at once.
class FileLock {
 public:
  explicit FileLock(int fd) : fd_(fd) {
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) error_ = errno;
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() {
    if (error_ == 0) (void)::flock(fd_, LOCK_UN);
  }
  // Timeout: somebody else holds it.
  Status status() const {
    if (error_ == 0) return {};
    if (error_ != EWOULDBLOCK && error_ != EINTR) return system_status("locking", error_);
    return status_of(StatusCode::timeout, "another process has kept the file locked");
  }

 private:
  int fd_;
  int error_ = 0;
};

class FileStore : public Store {
 public:
  FileStore(std::string path, FileDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string describe() const override { return "the file " + path_; }
  Result<StoreReply> answer(const StoreRequest& request, Deadline deadline) override;

  // Whether this is a file that may be used; makes its head if it is new.
  Status begin(Deadline deadline);

 private:
  Result<std::optional<StoreReply>> try_answer(const StoreRequest& request);
  Status catch_up();
  Result<std::string> read_news();
  Status take_head(std::string_view& news);
  Status write_change(std::string_view key);
  Status write_end(std::string_view bytes);

  const std::string path_;
  const FileDescriptor fd_;
  // Never held while sleeping. The lock on the file excludes other processes only.
  std::mutex mutex_;
  StoreContents contents_;
  // How much of the file `contents_` has taken in; what follows is news, or half a record.
  std::size_t known_bytes_ = 0;
};

Result<StoreReply> FileStore::answer(const StoreRequest& request, Deadline deadline) {
  Duration pause = kFirstPause;
  while (true) {
    Result<std::optional<StoreReply>> reply = try_answer(request);
    if (reply.ok() && *reply) return std::move(**reply);
    const bool locked = reply.status().code() == StatusCode::timeout;
    if (!reply.ok() && !locked) return reply.status();
    if (deadline.passed()) {
      return locked ? reply.status() : status_of(StatusCode::timeout, "nobody has set it in time");
    }
    std::this_thread::sleep_for(std::min(pause, deadline.remaining()));
    pause = std::min(2 * pause, kLongestPause);
  }
}

// Empty: not there yet. Timeout: somebody else holds the file at the moment.
Result<std::optional<StoreReply>> FileStore::try_answer(const StoreRequest& request) {
  const std::lock_guard guard(mutex_);
  const FileLock lock(fd_.get());
  STRETTO_RETURN_IF_ERROR(lock.status());
  STRETTO_RETURN_IF_ERROR(catch_up());
  const std::uint64_t before = contents_.revision();
  Result<std::optional<StoreReply>> reply = contents_.answer(request);
  if (contents_.revision() != before) STRETTO_RETURN_IF_ERROR(write_change(request.key));
  return reply;
}

Status FileStore::catch_up() {
  Result<std::string> text = read_news();
  if (!text.ok()) return text.status();
  std::string_view news = *text;
  if (known_bytes_ == 0) STRETTO_RETURN_IF_ERROR(take_head(news));
  while (true) {
    const Result<std::optional<FileRecord>> decoded = decode_file_record(news);
    if (!decoded.ok()) return decoded.status();
    if (!decoded.value()) return {};
    const FileRecord& record = *decoded.value();
    const StoreRequest change{
        .operation = record.value ? StoreOperation::set : StoreOperation::delete_key,
        .key = record.key,
        .value = record.value.value_or("")};
    STRETTO_RETURN_IF_ERROR(contents_.answer(change).status());
    known_bytes_ += record.bytes;
    news.remove_prefix(record.bytes);
  }
}

Result<std::string> FileStore::read_news() {
  struct stat state {};
  if (::fstat(fd_.get(), &state) != 0) return system_status("fstat");
  if (state.st_nlink == 0) return status_of(StatusCode::peer_lost, "the file has been removed");
  const auto file_bytes = static_cast<std::size_t>(state.st_size);
  if (file_bytes < known_bytes_) {
    return status_of(StatusCode::protocol, "the file has become shorter");
  }
  std::string news(file_bytes - known_bytes_, '\0');
  std::size_t done = 0;
  while (done < news.size()) {
    const ssize_t count = ::pread(fd_.get(), news.data() + done, news.size() - done,
                                  static_cast<off_t>(known_bytes_ + done));
    if (count < 0 && errno != EINTR) return system_status("reading");
    if (count == 0) return status_of(StatusCode::protocol, "the file has become shorter");
    if (count > 0) done += static_cast<std::size_t>(count);
  }
  return news;
}

// An empty file, or one with half a head, gets a whole one.
Status FileStore::take_head(std::string_view& news) {
  const std::string_view head = file_log_head();
  if (news.substr(0, head.size()) != head.substr(0, news.size())) {
    return status_of(StatusCode::refused,
                     "the file holds something else than a store; it stays as it is");
  }
  if (news.size() < head.size()) {
    news = {};
    return write_end(head);
  }
  known_bytes_ = head.size();
  news.remove_prefix(head.size());
  return {};
}

Status FileStore::write_change(std::string_view key) {
  const std::string* value = contents_.find(key);
  const Status written = write_end(encode_file_record(
      key, value == nullptr ? std::nullopt : std::optional<std::string_view>(*value)));
  if (written.ok()) return {};
  // What is in memory is not in the file: start again from the file.
  contents_ = StoreContents();
  known_bytes_ = 0;
  return written;
}

// Writes behind what is known, in place of what a killed writer may have left there.
Status FileStore::write_end(std::string_view bytes) {
  if (::ftruncate(fd_.get(), static_cast<off_t>(known_bytes_)) != 0) {
    return system_status("cutting off half a record");
  }
  const FileSizeSignalBlocked blocked;
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done,
                                   static_cast<off_t>(known_bytes_ + done));
    if (count < 0 && errno != EINTR) return system_status("writing");
    if (count > 0) done += static_cast<std::size_t>(count);
  }
  known_bytes_ += bytes.size();
  return {};
}

Status FileStore::begin(Deadline deadline) {
  struct stat state {};
  if (::fstat(fd_.get(), &state) != 0) return system_status("fstat");
  if (!S_ISREG(state.st_mode)) return status_of(StatusCode::refused, "it is no regular file");
  if (state.st_uid != ::geteuid()) {
    return status_of(StatusCode::refused, "it belongs to user {}, not to this one", state.st_uid);
  }
  if ((state.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return status_of(StatusCode::refused,
                     "others may read or write it (mode {:o}): who can, can join the job; make it "
                     "mode 600, or remove it",
                     static_cast<unsigned>(state.st_mode & 07777));
  }
  // Any request takes in the file, and so finds out what it is.
  return answer({.operation = StoreOperation::check, .key = "?"}, deadline).status();
}

}  // namespace

Result<std::unique_ptr<Store>> open_file_store(const std::string& path, Deadline deadline) {
  FileDescriptor fd(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!fd.valid()) return system_status("opening the file " + path);
  auto store = std::make_unique<FileStore>(path, std::move(fd));
  STRETTO_RETURN_IF_ERROR(store->begin(deadline).with_context("the file " + path));
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace stretto::bootstrap

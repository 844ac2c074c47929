// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#include "stretto/bootstrap/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <thread>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/file_size_signal.h"
#include "stretto/base/mutex.h"
#include "stretto/base/owner_process.h"
#include "stretto/base/parse_number.h"
#include "stretto/base/take_word.h"
#include "stretto/bootstrap/file_log.h"
#include "stretto/bootstrap/store_contents.h"

namespace stretto::bootstrap {
namespace {

// Pauses between two reads of the file. The first is short, as the awaited key is often about to
// come.
constexpr Duration kFirstPause = std::chrono::milliseconds(1);
constexpr Duration kLongestPause = std::chrono::milliseconds(20);

// Offsets of the bytes that are locked; the file may end before them.
constexpr off_t kChangeLock = 0;
constexpr off_t kWillLocks = off_t{1} << 40;
// Keys of wills begin with a byte that no program's key has by accident.
constexpr std::string_view kWillCount = "\1stretto wills";
// Time between two searches for wills of processes that have ended.
constexpr Duration kBetweenWills = std::chrono::milliseconds(200);

// A lock of the open file description, not of the process: the kernel releases it when the last
// process that shares the description has closed it.
int lock_byte(int fd, off_t at, short type, int command = F_OFD_SETLK) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_start = at;
  lock.l_len = 1;
  if (::fcntl(fd, command, &lock) != 0) return -1;
  return lock.l_type;
}

// Holds the lock on an open file, if it was free.
class FileLock {
 public:
  explicit FileLock(int fd) : fd_(fd) {
    if (lock_byte(fd, kChangeLock, F_WRLCK) < 0) error_ = errno;
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() {
    if (error_ == 0) (void)lock_byte(fd_, kChangeLock, F_UNLCK);
  }
  // The file was removed on a file server, and cannot be read any more.
  bool file_is_gone() const { return error_ == ESTALE; }
  // Fails with timeout if another process holds the lock.
  Status status() const {
    if (error_ == 0 || file_is_gone()) return {};
    if (error_ != EAGAIN && error_ != EACCES && error_ != EINTR)
      return system_status("locking", error_);
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
  Result<StoreReply> answer(const StoreRequest& request, const WaitLimit& limit) override;
  Result<std::unique_ptr<StoreWatch>> watch(const std::string& key, const Will& will,
                                            const WaitLimit& limit) override;
  // Releases the lock of a will, which shows that its process lives.
  void end_life(std::int64_t will);

  // Fails if the file may not be used. Writes the head of a new file.
  Status begin(const WaitLimit& limit);

 private:
  Result<std::optional<StoreReply>> try_answer(const StoreRequest& request);
  // Executes the wills of processes that have ended.
  Status execute_wills() STRETTO_REQUIRES(mutex_);
  Status catch_up(const FileLock& lock) STRETTO_REQUIRES(mutex_);
  bool is_removed(const struct stat& state) const;
  Result<std::string> read_new_bytes() STRETTO_REQUIRES(mutex_);
  Status take_head(std::string_view& fresh) STRETTO_REQUIRES(mutex_);
  Status write_change(std::string_view key) STRETTO_REQUIRES(mutex_);
  Status write_end(std::string_view bytes) STRETTO_REQUIRES(mutex_);

  const std::string path_;
  // A forked child shares the open file description and its locks, so these do not keep the two
  // apart.
  const OwnerProcess owner_process_;
  const FileDescriptor fd_;
  // Never held while sleeping. It excludes other threads; the lock on the file excludes only other
  // processes.
  Mutex mutex_;
  StoreContents contents_ STRETTO_GUARDED_BY(mutex_);
  // How much of the file is in `contents_`. The bytes behind it are new, or an incomplete record.
  std::size_t known_bytes_ STRETTO_GUARDED_BY(mutex_) = 0;
  // Whether the file was removed. Its contents can still be read: perhaps they say why.
  bool removed_ STRETTO_GUARDED_BY(mutex_) = false;
  // The wills of this store's own watches, because its own locks look free to it.
  std::set<std::int64_t> living_ STRETTO_GUARDED_BY(mutex_);
  Deadline next_wills_ STRETTO_GUARDED_BY(mutex_) = Deadline::after(kBetweenWills);
};

bool reads(StoreOperation operation) {
  return operation == StoreOperation::get || operation == StoreOperation::wait ||
         operation == StoreOperation::check;
}

std::string_view take_front(std::string_view& text, std::size_t bytes) {
  const std::string_view front = text.substr(0, bytes);
  text.remove_prefix(bytes);
  return front;
}

std::string will_key(std::int64_t number) { return fmt::format("\1stretto will {}", number); }

class FileWatch : public StoreWatch {
 public:
  FileWatch(FileStore& store, std::unique_ptr<StoreWatch> reader, std::int64_t own_will)
      : store_(store), reader_(std::move(reader)), own_will_(own_will) {}
  ~FileWatch() override { store_.end_life(own_will_); }
  Status revoke(const WaitLimit& limit) override {
    return store_.delete_key(will_key(own_will_), limit).status();
  }
  Result<std::optional<std::string>> look() override { return reader_->look(); }

 private:
  FileStore& store_;
  const std::unique_ptr<StoreWatch> reader_;
  const std::int64_t own_will_;
};

Result<std::unique_ptr<StoreWatch>> FileStore::watch(const std::string& key, const Will& will,
                                                     const WaitLimit& limit) {
  STRETTO_ASSIGN_OR_RETURN(const std::int64_t number, add(kWillCount, 1, limit));
  if (lock_byte(fd_.get(), kWillLocks + number, F_WRLCK) < 0) {
    return system_status("locking a byte of the file for a will");
  }
  {
    const MutexLock guard(mutex_);
    living_.insert(number);
  }
  STRETTO_RETURN_IF_ERROR(set(will_key(number),
                              fmt::format("{} {} {}{}{}", key.size(), will.revoked_by.size(), key,
                                          will.revoked_by, will.value),
                              limit));
  STRETTO_ASSIGN_OR_RETURN(auto reader, Store::watch(key, will, limit));
  return std::unique_ptr<StoreWatch>(std::make_unique<FileWatch>(*this, std::move(reader), number));
}

void FileStore::end_life(std::int64_t will) {
  if (!owner_process_.is_here()) return;
  const MutexLock guard(mutex_);
  living_.erase(will);
  (void)lock_byte(fd_.get(), kWillLocks + will, F_UNLCK);
}

Status FileStore::execute_wills() {
  next_wills_ = Deadline::after(kBetweenWills);
  const std::string* count = contents_.find(kWillCount);
  const std::int64_t last = count == nullptr ? 0 : std::atoll(count->c_str());
  for (std::int64_t number = 1; number <= last; ++number) {
    const std::string* left = contents_.find(will_key(number));
    if (left == nullptr || living_.contains(number)) continue;
    const std::string text = *left;
    std::string_view value = text;  // Keys may hold any byte, so their lengths come first.
    const auto key_bytes = parse_number<std::size_t>(take_word(value, ' '));
    const auto other_bytes = parse_number<std::size_t>(take_word(value, ' '));
    if (!key_bytes || !other_bytes || *key_bytes > value.size()) continue;
    const std::string_view key = take_front(value, *key_bytes);
    if (*other_bytes >= value.size()) continue;  // Not the text of a will.
    const std::string_view revoked_by = take_front(value, *other_bytes);
    if (contents_.find(revoked_by) != nullptr || contents_.find(key) != nullptr) continue;
    // This test comes last, because it is slow on a network file system, and the whole file is
    // locked meanwhile.
    if (lock_byte(fd_.get(), kWillLocks + number, F_WRLCK, F_OFD_GETLK) != F_UNLCK) continue;
    const StoreRequest set{.operation = StoreOperation::set, .key = key, .value = value};
    if (!check_store_limits(set).ok()) continue;
    STRETTO_RETURN_IF_ERROR(contents_.answer(set).status());
    STRETTO_RETURN_IF_ERROR(write_change(key));
    // A will is executed once, so it is deleted: a process that deletes `key` later has read it.
    const std::string done = will_key(number);
    const StoreRequest forget{.operation = StoreOperation::delete_key, .key = done};
    STRETTO_RETURN_IF_ERROR(contents_.answer(forget).status());
    STRETTO_RETURN_IF_ERROR(write_change(done));
  }
  return {};
}

Result<StoreReply> FileStore::answer(const StoreRequest& request, const WaitLimit& limit) {
  if (!owner_process_.is_here()) {
    return status_of(StatusCode::invalid_argument,
                     "this process was forked from the one that has opened the file: open it anew "
                     "here");
  }
  Duration pause = kFirstPause;
  while (true) {
    Result<std::optional<StoreReply>> reply = try_answer(request);
    if (reply.ok() && *reply) return std::move(**reply);
    const bool locked = reply.status().code() == StatusCode::timeout;
    if (!reply.ok() && !locked) return reply.status();
    if (limit.passed()) {
      return locked ? reply.status() : status_of(StatusCode::timeout, "nobody has set it in time");
    }
    STRETTO_RETURN_IF_ERROR(limit.look());
    std::this_thread::sleep_for(std::min(pause, limit.nap()));
    pause = std::min(2 * pause, kLongestPause);
  }
}

// Empty if the key is absent. Fails with timeout if another process holds the lock at the moment.
Result<std::optional<StoreReply>> FileStore::try_answer(const StoreRequest& request) {
  const MutexLock guard(mutex_);
  const FileLock lock(fd_.get());
  STRETTO_RETURN_IF_ERROR(catch_up(lock));
  // The caller may be waiting for a process that has ended. A process that has removed the file may
  // have left a will, too.
  if (removed_ || next_wills_.passed()) STRETTO_RETURN_IF_ERROR(execute_wills());
  if (removed_ && (contents_.find(request.key) == nullptr || !reads(request.operation))) {
    return status_of(StatusCode::peer_lost, "the file has been removed");
  }
  const std::uint64_t before = contents_.revision();
  Result<std::optional<StoreReply>> reply = contents_.answer(request);
  if (contents_.revision() != before) STRETTO_RETURN_IF_ERROR(write_change(request.key));
  return reply;
}

Status FileStore::catch_up(const FileLock& lock) {
  STRETTO_RETURN_IF_ERROR(lock.status());
  if (lock.file_is_gone()) {
    removed_ = true;
    return {};
  }
  STRETTO_ASSIGN_OR_RETURN(std::string text, read_new_bytes());
  std::string_view fresh = text;
  if (known_bytes_ == 0) STRETTO_RETURN_IF_ERROR(take_head(fresh));
  while (true) {
    STRETTO_ASSIGN_OR_RETURN(const std::optional<FileRecord> decoded, decode_file_record(fresh));
    if (!decoded) return {};
    const FileRecord& record = *decoded;
    const StoreRequest change{
        .operation = record.value ? StoreOperation::set : StoreOperation::delete_key,
        .key = record.key,
        .value = record.value.value_or("")};
    STRETTO_RETURN_IF_ERROR(contents_.answer(change).status());
    known_bytes_ += record.bytes;
    fresh.remove_prefix(record.bytes);
  }
}

// NFS renames a file that is removed while a process on this host has it open.
bool FileStore::is_removed(const struct stat& state) const {
  struct stat named {};
  if (state.st_nlink == 0) return true;
  if (::lstat(path_.c_str(), &named) != 0) return errno == ENOENT;
  return named.st_dev != state.st_dev || named.st_ino != state.st_ino;
}

Result<std::string> FileStore::read_new_bytes() {
  struct stat state {};
  if (::fstat(fd_.get(), &state) != 0) {
    if (errno != ESTALE) return system_status("fstat");
    removed_ = true;
    return std::string();
  }
  removed_ = is_removed(state);
  const auto file_bytes = static_cast<std::size_t>(state.st_size);
  if (file_bytes < known_bytes_) {
    return status_of(StatusCode::protocol, "the file has become shorter");
  }
  std::string fresh(file_bytes - known_bytes_, '\0');
  std::size_t done = 0;
  while (done < fresh.size()) {
    const ssize_t count = ::pread(fd_.get(), fresh.data() + done, fresh.size() - done,
                                  static_cast<off_t>(known_bytes_ + done));
    if (count < 0 && errno != EINTR) return system_status("reading");
    if (count == 0) return status_of(StatusCode::protocol, "the file has become shorter");
    if (count > 0) done += static_cast<std::size_t>(count);
  }
  return fresh;
}

// Completes the head of an empty file, or of one with an incomplete head.
Status FileStore::take_head(std::string_view& fresh) {
  const std::string_view head = file_log_head();
  if (fresh.substr(0, head.size()) != head.substr(0, fresh.size())) {
    return status_of(StatusCode::refused,
                     "the file holds something else than a store; it stays as it is");
  }
  if (fresh.size() < head.size()) {
    fresh = {};
    return write_end(head);
  }
  known_bytes_ = head.size();
  fresh.remove_prefix(head.size());
  return {};
}

Status FileStore::write_change(std::string_view key) {
  const std::string* value = contents_.find(key);
  const Status written = write_end(encode_file_record(
      key, value == nullptr ? std::nullopt : std::optional<std::string_view>(*value)));
  if (written.ok()) return {};
  // The file lacks the change that is in memory, so start again from the file.
  contents_ = StoreContents();
  known_bytes_ = 0;
  return written;
}

// Writes behind the known bytes, and overwrites what a killed writer may have left there.
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

Status FileStore::begin(const WaitLimit& limit) {
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
  // Any request reads the file, and so finds out whether it is a store.
  return answer({.operation = StoreOperation::check, .key = "?"}, limit).status();
}

}  // namespace

Result<std::unique_ptr<Store>> open_file_store(const std::string& given_path,
                                               const WaitLimit& limit) {
  // Absolute, as the program may change its working directory.
  std::error_code failure;
  const std::string path = std::filesystem::absolute(given_path, failure);
  if (failure) {
    return status_of(StatusCode::system, "the file '{}' of a store: {}", given_path,
                     failure.message());
  }
  FileDescriptor fd(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!fd.valid()) return system_status("opening the file " + path);
  auto store = std::make_unique<FileStore>(path, std::move(fd));
  STRETTO_RETURN_IF_ERROR(store->begin(limit).with_context("the file " + path));
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace stretto::bootstrap

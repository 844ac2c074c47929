// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "stretto/base/status.h"
#include "stretto/base/wait_limit.h"
#include "stretto/bootstrap/store_request.h"

namespace stretto::bootstrap {

inline constexpr std::size_t kMaxKeyBytes = 256;
inline constexpr std::size_t kMaxValueBytes = 64 * 1024;

// What a store does when a user's StoreWatch is destroyed, or the user's process ends.
struct Will {
  std::string value;       // The store gives the watched key this value, unless it has a value
  std::string revoked_by;  // already, or the key of this name has one.
};

// See Store::watch().
class StoreWatch {
 public:
  virtual ~StoreWatch() = default;
  // Returns the value of the watched key, or nothing if it is not set yet; does not wait until it
  // is. Fails with peer_lost if the store is gone.
  virtual Result<std::optional<std::string>> look() = 0;
  // Withdraws the will. Call it before the first look().
  virtual Status revoke(const WaitLimit& limit) = 0;
};

// Where ranks leave notes for each other before they are connected: a map from keys to bytes that
// all ranks of a job see, with the operations of torch.distributed's stores. Implementations: a map
// in this process (memory_store.h), a file (file_store.h), a client of our server (tcp_store.h), a
// client of PyTorch's TCPStore (torch_store.h), and a part of any of them (prefix_store.h).
//
// Thread safe. An operation on one key is atomic. It blocks until its deadline at most; then it
// fails with timeout, and may or may not have made its change. Keys have 1 to kMaxKeyBytes bytes,
// values up to kMaxValueBytes, and both may hold any byte. Other lengths fail with
// invalid_argument and change nothing.
class Store {
 public:
  virtual ~Store() = default;

  // Sets the value of a key, whether it has one or not.
  Status set(std::string_view key, std::string_view value, const WaitLimit& limit);
  // Returns the value. Waits until somebody has set the key.
  Result<std::string> get(std::string_view key, const WaitLimit& limit);
  // Returns the value, or nothing if the key has none; does not wait until it is set.
  Result<std::optional<std::string>> look_up(std::string_view key, const WaitLimit& limit);
  // Adds to a decimal number and returns the sum; an absent key counts as 0. Fails with
  // invalid_argument, and changes nothing, if the value is no number or the sum exceeds 64 bits.
  Result<std::int64_t> add(std::string_view key, std::int64_t amount, const WaitLimit& limit);
  // Replaces the value by `desired` if it equals `expected`; an absent key equals "". Returns the
  // value after that, "" for a key that is still absent.
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired, const WaitLimit& limit);
  // Adds to the end of the value; an absent key counts as "".
  Status append(std::string_view key, std::string_view suffix, const WaitLimit& limit);
  // Waits until the first key is set, then until the second is, and so on.
  Status wait(std::span<const std::string> keys, const WaitLimit& limit);
  // Returns whether all keys have values; looks for one after the other.
  Result<bool> check(std::span<const std::string> keys, const WaitLimit& limit);
  // Deletes a key. Returns whether it had a value.
  Result<bool> delete_key(std::string_view key, const WaitLimit& limit);

  // Gets (sets) one key after the other, within one deadline. If multi_set() fails, some keys may
  // be set. The client of our server gets many keys at a time.
  virtual Result<std::vector<std::string>> multi_get(std::span<const std::string> keys,
                                                     const WaitLimit& limit);
  Status multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                   const WaitLimit& limit);
  // The keys that begin with `prefix`, in ascending order, and their number. If keys are set or
  // deleted meanwhile, a long list may have some of them and not others. Fails with
  // invalid_argument for PyTorch's stores, which do not list keys.
  Result<std::vector<std::string>> list_keys(std::string_view prefix, const WaitLimit& limit);
  Result<std::int64_t> num_keys(std::string_view prefix, const WaitLimit& limit);

  // Watches a key. With the watch the user leaves a will, which is executed when the watch is
  // destroyed or this process ends, however it ends. PyTorch's stores, and the memory of a process,
  // execute no wills. The watch must not outlive the store.
  virtual Result<std::unique_ptr<StoreWatch>> watch(const std::string& key, const Will& will,
                                                    const WaitLimit& limit);

  // Where the store is, for messages: "the store of the launcher at 10.0.4.7:29500".
  virtual std::string describe() const = 0;

  // "HOST:PORT" of the server that keeps the store; empty if there is none. HOST is numeric if a
  // connection has shown at which of a name's addresses the server is: ranks reach each other by
  // the network by which they reach the server.
  virtual std::string server() const { return {}; }

  // Answers one request, whose lengths have been checked; each implementation overrides it. Users
  // call the functions above, whose failures say what was asked for and where. Requests `get` and
  // `wait` wait until the key is set. An implementation that waits calls limit.look() as WaitLimit
  // says, returns its failure, and holds no lock then: look() may call answer() of this store on
  // the same thread.
  virtual Result<StoreReply> answer(const StoreRequest& request, const WaitLimit& limit) = 0;

 private:
  Result<StoreReply> ask(const StoreRequest& request, const WaitLimit& limit);
};

// Checks the lengths of a request's keys and values.
Status check_store_limits(const StoreRequest& request);

}  // namespace stretto::bootstrap

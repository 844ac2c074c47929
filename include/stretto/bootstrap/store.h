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

// What a store shall do when its user is gone without having said so.
struct Will {
  std::string value;       // What the watched key becomes, unless it has a value already,
  std::string revoked_by;  // or this key has one.
};

// See Store::watch().
class StoreWatch {
 public:
  virtual ~StoreWatch() = default;
  // The value of the key, once somebody has set it. Does not wait for that. Fails with peer_lost if
  // the store is gone.
  virtual Result<std::optional<std::string>> look() = 0;
  // Takes the will back. To be called before the first look().
  virtual Status revoke(const WaitLimit& limit) = 0;
};

// Where ranks leave notes for each other before they are connected: a map from keys to bytes that
// all ranks of a job see, with the operations of torch.distributed's stores. Implementations: a map
// in this process (memory_store.h), a file (file_store.h), a client of our server (tcp_store.h), a
// client of PyTorch's (torch_store.h), and a part of any of them (prefix_store.h).
//
// Thread safe. Every operation is atomic, and blocks for at most its deadline; then it fails with
// timeout, and whether a change was made is unknown. Keys have 1 to kMaxKeyBytes bytes, values up
// to kMaxValueBytes, and both may hold any byte; beyond that: invalid_argument, nothing changed.
class Store {
 public:
  virtual ~Store() = default;

  // Replaces what was there.
  Status set(std::string_view key, std::string_view value, const WaitLimit& limit);
  // Waits until somebody has set the key.
  Result<std::string> get(std::string_view key, const WaitLimit& limit);
  // The value, if the key has one; does not wait for that.
  Result<std::optional<std::string>> look_up(std::string_view key, const WaitLimit& limit);
  // Adds to a decimal number and returns the sum; an absent key counts as 0. Fails with
  // invalid_argument, and changes nothing, if the value is no number or the sum is none of 64 bits.
  Result<std::int64_t> add(std::string_view key, std::int64_t amount, const WaitLimit& limit);
  // Replaces the value by `desired` if it equals `expected`; an absent key equals "". Returns what
  // is there now, "" for a key that is still absent.
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired, const WaitLimit& limit);
  // Adds to the end of the value; an absent key counts as "".
  Status append(std::string_view key, std::string_view suffix, const WaitLimit& limit);
  // Waits until each of the keys has been seen, one after the other.
  Status wait(std::span<const std::string> keys, const WaitLimit& limit);
  // Whether each of the keys is there; asks for one after the other.
  Result<bool> check(std::span<const std::string> keys, const WaitLimit& limit);
  // Whether there was something to delete.
  Result<bool> delete_key(std::string_view key, const WaitLimit& limit);

  // Gets (sets) one after the other, within one deadline; of a multi_set that fails, some may be
  // set. Our server is asked for many keys at a time.
  virtual Result<std::vector<std::string>> multi_get(std::span<const std::string> keys,
                                                     const WaitLimit& limit);
  Status multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                   const WaitLimit& limit);
  // The keys that begin with `prefix`, in ascending order, and their number. Of keys that come or
  // go meanwhile, a long list may have some and not others. PyTorch's stores do not tell:
  // invalid_argument.
  Result<std::vector<std::string>> list_keys(std::string_view prefix, const WaitLimit& limit);
  Result<std::int64_t> num_keys(std::string_view prefix, const WaitLimit& limit);

  // Watches a key. With the watch the user leaves a will, which is executed when the watch is
  // destroyed or this process ends, however it ends. PyTorch's stores, and the memory of a process,
  // execute no wills. The watch must not outlive the store.
  virtual Result<std::unique_ptr<StoreWatch>> watch(const std::string& key, const Will& will,
                                                    const WaitLimit& limit);

  // Where it is, for messages: "the store of the launcher at 10.0.4.7:29500".
  virtual std::string describe() const = 0;

  // "HOST:PORT" of the server that keeps it, numeric if a connection has shown which of a name's
  // addresses it has: ranks reach each other by the network by which they reach that. Empty where
  // there is no server.
  virtual std::string server() const { return {}; }

  // What an implementation does: one request, whose limits have been checked. Users call the
  // functions above, which say in a failure what was asked for and where. `get` and `wait` wait
  // until the key is there. Who waits calls limit.look() as WaitLimit says, and returns its
  // failure; look() may call answer() of this store on the same thread, so no lock may be held
  // then.
  virtual Result<StoreReply> answer(const StoreRequest& request, const WaitLimit& limit) = 0;

 private:
  Result<StoreReply> ask(const StoreRequest& request, const WaitLimit& limit);
};

// Whether a store may be asked for this: the limits on keys and values.
Status check_store_limits(const StoreRequest& request);

}  // namespace stretto::bootstrap

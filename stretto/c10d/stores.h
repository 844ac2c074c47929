// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "stretto/bootstrap/store.h"
#include "stretto/communicator/communicator.h"

namespace stretto::c10d_backend {

// A store of PyTorch's as one of ours, so that ranks meet where torch.distributed has met, and no
// second port is needed. For a GenerationStore or a part of it, returns the same part of our own
// store, which knows of deaths.
std::shared_ptr<bootstrap::Store> store_of(const c10::intrusive_ptr<::c10d::Store>& store);

// The store that `store` is a part of, or itself.
c10::intrusive_ptr<::c10d::Store> whole_of(const c10::intrusive_ptr<::c10d::Store>& store);
// "HOST:PORT" of the server, if the whole store is a TCPStore of PyTorch's; else empty.
std::string tcp_server_of(const c10::intrusive_ptr<::c10d::Store>& store);
// A client of the TCPStore at "HOST:PORT". Throws PeerLost if it is not there in time.
std::shared_ptr<bootstrap::Store> connect_tcp_store(const std::string& server, Duration timeout);

// The reverse: the store in which the members of a generation of an elastic job have met, as a
// store of PyTorch's. Throws DistStoreError if a key does not come in time, and DistBackendError if
// a member has died, as operations do. Thread-safe, except for setTimeout().
class GenerationStore final : public ::c10d::Store {
 public:
  // `communicator` is that of all members, for the first group that is made with this store.
  GenerationStore(std::shared_ptr<bootstrap::Store> store,
                  std::unique_ptr<Communicator> communicator)
      : store_(std::move(store)), communicator_(std::move(communicator)) {}

  // Null if it has been taken before.
  std::unique_ptr<Communicator> take_communicator() { return std::move(communicator_); }
  const std::shared_ptr<bootstrap::Store>& store() const { return store_; }

  using Bytes = std::vector<uint8_t>;
  using Keys = std::vector<std::string>;
  using Store::compareSet;
  using Store::set;
  c10::intrusive_ptr<Store> clone() override;
  void set(const std::string& key, const Bytes& value) override;
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override;
  Bytes get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool deleteKey(const std::string& key) override;
  bool check(const Keys& keys) override;
  int64_t getNumKeys() override;
  void wait(const Keys& keys) override { wait(keys, timeout_); }
  void wait(const Keys& keys, const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const Bytes& value) override;
  std::vector<Bytes> multiGet(const Keys& keys) override;
  void multiSet(const Keys& keys, const std::vector<Bytes>& values) override;
  bool hasExtendedApi() const override { return true; }
  Keys listKeys();  // Overrides only in some versions of PyTorch from 2.11 on.

 private:
  const std::shared_ptr<bootstrap::Store> store_;
  std::unique_ptr<Communicator> communicator_;
};

// Takes the communicator of the GenerationStore that `store` is, or is a part of. Null if there is
// none, or if it has been taken before.
std::unique_ptr<Communicator> take_communicator(::c10d::Store& store);

}  // namespace stretto::c10d_backend

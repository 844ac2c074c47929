// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>

#include "stretto/base/mutex.h"
#include "stretto/bootstrap/connection_pool.h"
#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {

// What the clients of store servers have in common: a pool of connections, and their place.
class StoreClient : public Store {
 public:
  struct Address {
    std::string owner = {};  // "the store of the launcher"
    std::string host = {};
    int port = 0;
  };

  // Once it has connected it also says to which address: the name may not have meant what the
  // caller thinks.
  std::string describe() const override;
  std::string server() const override;
  Result<StoreReply> answer(const StoreRequest& request, const WaitLimit& limit) override;

  // Makes the first connection, so that what is wrong is found at once.
  Status open(const WaitLimit& limit);

 protected:
  // A new connection, greeted.
  Result<FileDescriptor> connect(const WaitLimit& limit);
  ConnectionPool& pool() { return pool_; }
  explicit StoreClient(Address address)
      : address_(std::move(address)),
        pool_([this](const WaitLimit& limit) { return connect(limit); }) {}

 private:
  // Makes a connection over `fd` ready for requests.
  virtual Status greet(int fd, const WaitLimit& limit) = 0;
  // One request and its reply. A failure that reads like a reply (invalid_argument, refused) leaves
  // the connection usable; any other closes it.
  virtual Result<StoreReply> exchange(int fd, const StoreRequest& request,
                                      const WaitLimit& limit) = 0;

  const Address address_;
  ConnectionPool pool_;
  mutable Mutex mutex_;
  // "10.0.4.7:29500"; empty before the first connection.
  std::string resolved_ STRETTO_GUARDED_BY(mutex_);
};

}  // namespace stretto::bootstrap

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/mutex.h"
#include "stretto/base/owner_process.h"
#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {

// The common part of the clients of store servers: the server's address, and connections to it.
// Each call uses a connection of its own, so a thread that waits for a key keeps no other from
// setting it, and a request that is given up costs only its connection. A forked child shares the
// idle connections with its parent, so it makes a new one for each call. It takes no lock, which a
// thread that does not exist in the child may hold.
class StoreClient : public Store {
 public:
  struct Address {
    std::string owner = {};  // "the store of the launcher".
    std::string host = {};
    int port = 0;
  };

  // After the first connection it also names the numeric address, as the name may resolve to
  // another host than the caller thinks.
  std::string describe() const override;
  std::string server() const override;
  Result<StoreReply> answer(const StoreRequest& request, const WaitLimit& limit) override;

  // Makes the first connection, so that a wrong address or key is found at once.
  Status open(const WaitLimit& limit);

 protected:
  // A new connection, greeted.
  Result<FileDescriptor> connect(const WaitLimit& limit);
  // An idle connection, or a new one.
  Result<FileDescriptor> take_connection(const WaitLimit& limit);
  // To be called only after a complete exchange; otherwise let the connection close.
  void give_back(FileDescriptor connection);
  explicit StoreClient(Address address) : address_(std::move(address)) {}

 private:
  // Makes a connection over `fd` ready for requests.
  virtual Status greet(int fd, const WaitLimit& limit) = 0;
  // One request and its reply. After a failure the connection is closed.
  virtual Result<StoreReply> exchange(int fd, const StoreRequest& request,
                                      const WaitLimit& limit) = 0;

  // "10.0.4.7:29500"; empty before the first connection, and in a forked child.
  std::string resolved() const;

  const Address address_;
  const OwnerProcess owner_process_;
  mutable Mutex mutex_;
  std::vector<FileDescriptor> idle_ STRETTO_GUARDED_BY(mutex_);
  std::string resolved_ STRETTO_GUARDED_BY(mutex_);
};

}  // namespace stretto::bootstrap

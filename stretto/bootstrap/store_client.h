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

// What the clients of store servers have in common: their place, and connections to it, each used
// by one call at a time. So a thread that waits for a key keeps no other from setting it, and a
// request that was given up costs its connection and nothing else. A forked child, which shares the
// idle ones with its parent, makes a connection for each of its calls. It takes no lock either: a
// thread that it does not have may hold that.
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
  // One that is idle, or a new one.
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

// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>

#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {

// A store in one file, for processes that share a file system with working locks (fcntl). Each
// change appends a record. A process that is killed while it writes leaves half a record, which the
// next writer cuts off.
//
// Creates the file if it is absent, for its owner only. Fails with refused, and leaves the file as
// it is, if it belongs to another user, if others may read or write it (they could join the job),
// or if it holds something else than a store. The store never removes the file; the program does,
// when the last process has finished. After the file was removed or renamed, operations fail with
// peer_lost, also those that wait already; only values that were set before can still be read.
//
// A process that waits looks at the file some fifty times a second. Requests and waits also execute
// the wills of watches that are gone, five times a second at most; this takes a system call for
// each will. Thread safe; processes may come and go. A forked child opens the file anew: operations
// on the store that its parent has opened fail there with invalid_argument.
Result<std::unique_ptr<Store>> open_file_store(const std::string& path, const WaitLimit& limit);

}  // namespace stretto::bootstrap

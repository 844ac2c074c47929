// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <memory>
#include <string>

#include "stretto/bootstrap/store.h"

namespace stretto::bootstrap {

// A store in one file, for processes that share a file system with working locks (fcntl): every
// change is a record at its end. Who is killed in the middle of writing leaves half a record, which
// the next writer cuts off.
//
// Makes the file, readable by its owner only, if it is absent. Fails with refused if it belongs to
// another user, if others may read it (whoever can read it can join the job), or if it holds
// something else; that stays as it is. Nobody removes the file: who knows that the last process has
// finished does. Operations on a removed file, or on one that has got another name, fail with
// peer_lost, also those that wait; but what was set before can still be read.
//
// A wait looks at the file some fifty times a second. Whoever asks for anything, or waits, executes
// the wills of those who are gone, five times a second at most; a look takes a system call for each
// will. Any thread; the processes may come and go. A forked child opens the file anew: what its
// parent has opened fails there with invalid_argument.
Result<std::unique_ptr<Store>> open_file_store(const std::string& path, const WaitLimit& limit);

}  // namespace stretto::bootstrap

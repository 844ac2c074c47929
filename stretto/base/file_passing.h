// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/view.h"

// Passes open files to other processes over Unix sockets, each with a message of bytes. No function
// blocks. A message of up to a page is sent as a whole or not at all.
namespace stretto {

// later: the socket is full, or too many files are in flight; try again. failed: errno says why.
enum class Sending { done, later, failed };

// Sends `bytes`, and `file` with them if it is not null.
Sending send_with_file(int socket, ConstByteSpan bytes, const FileDescriptor* file);

struct ReceivedFile {
  ssize_t count = 0;  // The result of recvmsg(), which sets errno.
  FileDescriptor file = {};
  // Not 0: the file could not be received, and this error number says why, as far as that can be
  // found out. The message stays in the socket, and so do all messages after it.
  int no_room = 0;
};
// Receives at most one file, even if the peer has sent several. One thread at a time.
ReceivedFile receive_with_file(int socket, ByteSpan bytes);

}  // namespace stretto

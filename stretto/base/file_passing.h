// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>

#include "stretto/base/file_descriptor.h"
#include "stretto/base/view.h"

// Files on their way to other processes, each beside bytes, over Unix sockets. Nothing here waits.
// Up to a page of bytes goes whole, or not at all.
namespace stretto {

// Later: the socket is full, or too many files are on their way. Failed: errno says why.
enum class Sending { done, later, failed };

// `file` may be null.
Sending send_with_file(int socket, ConstByteSpan bytes, const FileDescriptor* file);

struct ReceivedFile {
  ssize_t count = 0;  // As recvmsg() says it, with errno.
  FileDescriptor file = {};
  // Not 0: the error number that says why there is no descriptor for the file, as far as can be
  // found out. The message stays where it is, and all that comes behind it.
  int no_room = 0;
};
// Takes one file at most, whatever the peer has sent. One thread at a time.
ReceivedFile receive_with_file(int socket, ByteSpan bytes);

}  // namespace stretto

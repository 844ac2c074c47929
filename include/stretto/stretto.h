// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

// Everything that programs without torch use: join a job, get a Communicator, move and reduce data;
// make a job whose ranks are threads of one process, for tests; set a sink for the library's log.
// To be included separately: gradients that are reduced in buckets while others are still being
// computed (stretto/reducer/reducer.h); compressed vectors (stretto/reducer/
// compressed_all_reduce.h); key-value stores (stretto/bootstrap/store.h and *_store.h).
// With libtorch, include <stretto/torch.h> as well.

#include "stretto/base/log_sink.h"
#include "stretto/base/stream_guard.h"
#include "stretto/communicator/byte_exchange.h"
#include "stretto/communicator/communicator.h"
#include "stretto/communicator/flight_recorder.h"
#include "stretto/communicator/reproducible_sum.h"
#include "stretto/communicator/symmetric_memory.h"
#include "stretto/job/elastic_job.h"
#include "stretto/job/join.h"
#include "stretto/job/threads.h"
#include "stretto/reducer/sparse_rows.h"

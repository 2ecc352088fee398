// SPDX-License-Identifier: Apache-2.0
// Scratch memory for callers of ops that need a workspace: one block a thread, grown on demand and
// kept, so that a decode step allocates nothing.
#pragma once

#include <cstdint>

#include "common/isa.h"

namespace fdspec {

// Returns at least num_bytes, 64-byte aligned and of undefined content, valid until the calling
// thread's next call.
FDSPEC_EXPORT void* thread_workspace(int64_t num_bytes);

}  // namespace fdspec

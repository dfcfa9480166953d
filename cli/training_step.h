// The step that this process trains, for messages about failures that no call
// of ours returns: those of a library's own threads.
#pragma once

#include <atomic>
#include <cstdint>

namespace brigade::cli {

// -1: no step was begun.
inline std::atomic<int64_t> training_step{-1};

}  // namespace brigade::cli

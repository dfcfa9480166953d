// What the ranks of a run did in one step, from the traces of
// logging.trace_steps (metrics/trace.h).
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace brigade {

// The last traced step that all of the traces in the folder have, up to 64
// ranks:
//   {"step", "total_ms", "ranks": [{"rank", "spans": [{"kind": "F" | "B" | "W"
//   | "wait" | "other", "name", "begin", "end" (ms since the first rank began),
//   "micro_batch", "stage"}], "buckets": [as in metrics.jsonl]}]}
// null where there is no trace that can be read.
nlohmann::json read_timeline(const std::filesystem::path& folder);

}  // namespace brigade

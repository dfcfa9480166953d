// What one rank did last, as it is written when a run fails: the groups that
// the rank is a member of, and their latest operations.
//
// RUN/flight/rank-K.json, one per rank; `brigade analyze` merges them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "brigade/options/choice.h"

namespace brigade {

// How far an operation is, as the rank that launched it knows.
enum class FlightState {
  kUnderWay,
  kFinished,
  kFailed,
};
// As recordings and their tables call them.
template <>
inline constexpr std::array kChoices<FlightState>{
    Choice{FlightState::kUnderWay, "under way"},
    Choice{FlightState::kFinished, "finished"},
    Choice{FlightState::kFailed, "failed"}};

// Why a recording was written.
enum class FlightCause {
  kFailure,  // a failure or stall, of this rank or another one
  kRequest,  // somebody asked for it (SIGQUIT); the run went on
};
// As recordings call them.
template <>
inline constexpr std::array kChoices<FlightCause>{
    Choice{FlightCause::kFailure, "failure"},
    Choice{FlightCause::kRequest, "request"}};

// One collective or message of a group.
struct FlightOperation {
  int group = 0;     // index into FlightRecording::groups
  std::string kind;  // "all_reduce", "send", ...
  std::string dtype;
  int64_t numel = 0;
  // Collectives are counted per group, so equal on all members; messages per
  // group, peer and direction, so equal on both ends.
  int64_t sequence_number = 0;
  int peer = -1;  // global rank of a message's other end, or of the root; -1
  int64_t step = 0;
  int64_t launched_ns = 0;  // steady clock of the rank's host
  int64_t finished_ns = 0;  // 0: not known to have ended
  FlightState state = FlightState::kUnderWay;
  bool is_awaited = false;  // a thread, or the device, waits or waited for it

  bool is_message() const { return kind == "send" || kind == "recv"; }
  bool operator==(const FlightOperation&) const = default;
};

// A process group that operations were launched in.
struct FlightGroup {
  std::string name;          // "dp", "tp", "world"
  std::vector<int> members;  // global ranks, in the group's order
  // Each member by its place: "rank 3 (dp 1)". Empty: "rank 3".
  std::vector<std::string> member_names;
  bool operator==(const FlightGroup&) const = default;
};

// What is in one rank's file.
struct FlightRecording {
  int rank = 0;
  int64_t step = 0;  // that was under way
  FlightCause cause = FlightCause::kFailure;
  std::string reason;  // why it was written, in words
  // The longest time of the step in which the process did not run at all:
  // stopped, or starved of processor time.
  int64_t paused_ns = 0;
  int64_t written_ns = 0;     // steady clock of the rank's host
  int64_t begun_step_ns = 0;  // when the step began
  std::vector<FlightGroup> groups;
  std::vector<FlightOperation> operations;  // oldest first
  bool operator==(const FlightRecording&) const = default;
};

// Writes FOLDER/rank-K.json, making the folder. Throws StorageError.
void write_flight_recording(
    const std::filesystem::path& folder,
    const FlightRecording& recording);

// All recordings of a folder, by rank. Throws DataError where a file is no
// recording, or the folder holds none.
std::vector<FlightRecording> read_flight_recordings(
    const std::filesystem::path& folder);

}  // namespace brigade

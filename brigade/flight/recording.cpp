#include "brigade/flight/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/json/node.h"
#include "brigade/json/parse.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "brigade flight recording";
constexpr int64_t kVersion = 1;
constexpr int64_t kMaxRank = int64_t{1} << 24;

FlightState read_state(const JsonNode& node) {
  if (const auto state = find_choice<FlightState>(node.string()))
    return *state;
  node.fail(fmt::format(
      "'{}' is not \"under way\", \"finished\" or \"failed\"", node.string()));
}

// Recordings of older versions have none.
FlightCause read_cause(const JsonNode& root) {
  const auto node = root.find("cause");
  if (!node)
    return FlightCause::kFailure;
  if (const auto cause = find_choice<FlightCause>(node->string()))
    return *cause;
  node->fail(
      fmt::format("'{}' is not \"failure\" or \"request\"", node->string()));
}

int64_t count(const JsonNode& node) {
  return node.integer(0, std::numeric_limits<int64_t>::max());
}

FlightGroup read_group(const JsonNode& node) {
  FlightGroup group{
      .name = node.at("name").string(), .members = {}, .member_names = {}};
  const JsonNode members = node.at("members");
  for (const JsonNode& member : members.elements())
    group.members.push_back(static_cast<int>(member.integer(0, kMaxRank)));
  const JsonNode names = node.at("member_names");
  for (const JsonNode& name : names.elements())
    group.member_names.push_back(name.string());
  if (names.size() != 0 && names.size() != members.size())
    names.fail(
        fmt::format("{} names of {} members", names.size(), members.size()));
  return group;
}

FlightOperation read_operation(const JsonNode& node, size_t groups) {
  return {
      .group = static_cast<int>(
          node.at("group").integer(0, static_cast<int64_t>(groups) - 1)),
      .kind = node.at("kind").string(),
      .dtype = node.at("dtype").string(),
      .numel = count(node.at("numel")),
      .sequence_number = count(node.at("sequence_number")),
      .peer = static_cast<int>(node.at("peer").integer(-1, kMaxRank)),
      .step = count(node.at("step")),
      .launched_ns = count(node.at("launched_ns")),
      .finished_ns = count(node.at("finished_ns")),
      .state = read_state(node.at("state")),
      .is_awaited = node.boolean_at("is_awaited", false)};
}

FlightRecording read_recording(const fs::path& path) {
  const std::string text = read_text_file(path);
  const JsonDocument document(text, {"flight", path.string()});
  const JsonNode root = document.root();
  if (const JsonNode format = root.at("format"); format.string() != kFormat)
    format.fail("this is not a flight recording");
  root.at("version").integer(kVersion, kVersion);
  FlightRecording recording{
      .rank = static_cast<int>(root.at("rank").integer(0, kMaxRank)),
      .step = count(root.at("step")),
      .cause = read_cause(root),
      .reason = root.at("reason").string(),
      .paused_ns = count(root.at("paused_ns")),
      .written_ns = count(root.at("written_ns")),
      .begun_step_ns = count(root.at("begun_step_ns")),
      .groups = {},
      .operations = {}};
  for (const JsonNode& group : root.at("groups").elements())
    recording.groups.push_back(read_group(group));
  for (const JsonNode& operation : root.at("operations").elements())
    recording.operations.push_back(
        read_operation(operation, recording.groups.size()));
  return recording;
}

}  // namespace

void write_flight_recording(
    const fs::path& folder,
    const FlightRecording& recording) {
  Json groups = Json::array();
  for (const FlightGroup& group : recording.groups)
    groups.push_back(
        {{"name", group.name},
         {"members", group.members},
         {"member_names", group.member_names}});
  Json operations = Json::array();
  for (const FlightOperation& operation : recording.operations) {
    operations.push_back(
        {{"group", operation.group},
         {"kind", operation.kind},
         {"dtype", operation.dtype},
         {"numel", operation.numel},
         {"sequence_number", operation.sequence_number},
         {"peer", operation.peer},
         {"step", operation.step},
         {"launched_ns", operation.launched_ns},
         {"finished_ns", operation.finished_ns},
         {"state", to_string(operation.state)},
         {"is_awaited", operation.is_awaited}});
  }
  const Json json = {
      {"format", kFormat},
      {"version", kVersion},
      {"rank", recording.rank},
      {"step", recording.step},
      {"cause", to_string(recording.cause)},
      {"reason", recording.reason},
      {"paused_ns", recording.paused_ns},
      {"written_ns", recording.written_ns},
      {"begun_step_ns", recording.begun_step_ns},
      {"groups", std::move(groups)},
      {"operations", std::move(operations)}};
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw StorageError(fmt::format(
        "[flight] cannot make '{}': {}", folder.string(), error.message()));
  }
  // Errors' texts may hold any bytes.
  write_text_file(
      folder / fmt::format("rank-{}.json", recording.rank),
      json_to_text(json, 1) + "\n");
}

std::vector<FlightRecording> read_flight_recordings(const fs::path& folder) {
  std::vector<FlightRecording> recordings;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rank-") && name.ends_with(".json"))
      recordings.push_back(read_recording(entry.path()));
  }
  if (recordings.empty()) {
    throw DataError(fmt::format(
        "[flight] '{}' holds no recordings (rank-K.json): they are written "
        "when a rank fails, stalls or gets SIGQUIT",
        folder.string()));
  }
  std::ranges::sort(recordings, {}, &FlightRecording::rank);
  return recordings;
}

}  // namespace brigade

#include "brigade/run/stored_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/json/parse.h"
#include "brigade/options/optimizer_states.h"
#include "brigade/run/checkpoint_folder.h"
#include "brigade/run/find_damage.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

using TensorsByName = std::map<std::string, const SafetensorsTensor*>;

// What a stored tensor is a piece of, and of codes their scales; "" of scales,
// which belong to codes.
std::pair<std::string, const SafetensorsTensor*> name_of_piece(
    const TensorsByName& in_file,
    const SafetensorsTensor& stored) {
  const auto without = [&](std::string_view prefix) {
    return stored.name.substr(prefix.size());
  };
  if (stored.name.starts_with(kScalesPrefix) &&
      in_file.contains(kCodesPrefix + without(kScalesPrefix)))
    return {};
  if (!stored.name.starts_with(kCodesPrefix))
    return {stored.name, nullptr};
  const std::string name = without(kCodesPrefix);
  const auto scales = in_file.find(kScalesPrefix + name);
  const bool is_sane =
      scales != in_file.end() &&
      scales->second->dtype == SafetensorsDtype::kF32 &&
      static_cast<int64_t>(scales->second->data.size() / sizeof(float)) ==
          count_blocks(static_cast<int64_t>(stored.data.size())) &&
      (stored.dtype == SafetensorsDtype::kI8 ||
       stored.dtype == SafetensorsDtype::kU8);
  if (!is_sane)
    throw DataError(fmt::format(
        "[checkpoint] '{}' has {} bytes of dtype {}, but no tensor '{}' with a "
        "float32 scale for each {} of them",
        stored.name,
        stored.data.size(),
        name_of(stored.dtype),
        kScalesPrefix + name,
        kBlockNumel));
  return {name, scales->second};
}

}  // namespace

StoredCheckpoint::StoredCheckpoint(const fs::path& path)
    : directory_(find_checkpoint_directory(path)),
      manifest_(read_manifest(directory_)) {
  const auto damage = find_damage(directory_, manifest_, VerifyLevel::kSize);
  if (!damage.empty())
    throw DataError("[checkpoint] " + damage.front());
  files_.reserve(manifest_.files.size());
  for (const std::string& name : manifest_.files)
    files_.emplace_back(directory_ / name);
  for (const SafetensorsFile& file : files_) {
    check_file(file);
    add_pieces(file);
  }
  for (auto& [name, pieces] : pieces_)
    std::ranges::sort(pieces, {}, [](auto& p) { return p.slice.begin; });
}

DecoderConfig StoredCheckpoint::model(const char* module) const {
  return require_decoder_config(
      manifest_.model,
      (directory_ / kManifestFile).string() + ": /model",
      module);
}

std::string StoredCheckpoint::tokenizer() const {
  const fs::path beside = directory_ / manifest_.tokenizer;
  const bool is_beside = !manifest_.tokenizer.empty() && fs::exists(beside);
  return is_beside ? beside.string() : manifest_.tokenizer;
}

// The file is of the manifest's run and step.
void StoredCheckpoint::check_file(const SafetensorsFile& file) const {
  const auto& metadata = file.metadata();
  const auto value = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string() : found->second;
  };
  const std::string step =
      manifest_.is_verifiable() ? std::to_string(manifest_.step) : "";
  if (value(kRunKey) == manifest_.run && value(kStepKey) == step)
    return;
  throw DataError(fmt::format(
      "[checkpoint] '{}' belongs to step '{}' of run '{}', but the manifest "
      "beside it to step '{}' of run '{}'",
      file.path().string(),
      value(kStepKey),
      value(kRunKey),
      step,
      manifest_.run));
}

void StoredCheckpoint::add_pieces(const SafetensorsFile& file) {
  nlohmann::json places = nlohmann::json::object();
  if (const auto found = file.metadata().find(kPiecesKey);
      found != file.metadata().end())
    places = parse_json_or_nothing(found->second).value_or(nullptr);
  if (!places.is_object()) {
    throw DataError(fmt::format(
        "[checkpoint] '{}': the metadata \"{}\" is not a JSON object",
        file.path().string(),
        kPiecesKey));
  }
  const auto is_place = [](const nlohmann::json& place) {
    return place.is_array() && place.size() == 3 &&
           std::all_of(place.begin(), place.end(), [](const auto& number) {
             return number.is_number_integer();
           });
  };
  const bool is_state =
      file.path().filename().string().starts_with(kOptimizerFile);
  std::map<std::string, const SafetensorsTensor*> by_name;
  for (const SafetensorsTensor& stored : file.tensors())
    by_name[stored.name] = &stored;
  for (const SafetensorsTensor& stored : file.tensors()) {
    const auto [name, scales] = name_of_piece(by_name, stored);
    if (name.empty())
      continue;
    Piece piece{.stored = &stored, .scales = scales, .is_state = is_state};
    if (places.contains(stored.name)) {
      std::vector<int64_t> place;
      if (is_place(places[stored.name]))
        places[stored.name].get_to(place);
      const bool is_sane =
          place.size() == 3 && place[0] >= 0 &&
          place[0] < static_cast<int64_t>(stored.shape.size()) &&
          place[1] >= 0 && place[2] >= place[1] &&
          static_cast<uint64_t>(place[2] - place[1]) ==
              stored.shape[static_cast<size_t>(place[0])];
      if (!is_sane) {
        throw DataError(fmt::format(
            "[checkpoint] '{}': the place of tensor '{}' does not fit its "
            "shape",
            file.path().string(),
            stored.name));
      }
      piece.slice = {static_cast<int>(place[0]), place[1], place[2]};
    }
    pieces_[name].push_back(piece);
  }
}

bool StoredCheckpoint::contains(const std::string& name) const {
  return pieces_.count(name) > 0;
}

std::vector<std::string> StoredCheckpoint::names() const {
  std::vector<std::string> result;
  for (const auto& [name, pieces] : pieces_)
    result.push_back(name);
  return result;
}

std::vector<CheckpointTensor> StoredCheckpoint::tensors() const {
  std::vector<CheckpointTensor> result;
  for (const auto& [name, pieces] : pieces_) {
    const SafetensorsTensor& first = *pieces.front().stored;
    CheckpointTensor tensor{.name = name, .dtype = first.dtype};
    tensor.shape.assign(first.shape.begin(), first.shape.end());
    tensor.pieces = static_cast<int>(pieces.size());
    tensor.is_state = pieces.front().is_state;
    int64_t position = 0;
    for (const Piece& piece : pieces) {
      tensor.size_bytes += piece.stored->data.size();
      if (piece.scales != nullptr)
        tensor.size_bytes += piece.scales->data.size();
      tensor.is_whole = tensor.is_whole && piece.slice.begin == position;
      position = piece.slice.end;
    }
    if (const int dim = pieces.front().slice.dim; dim != kNotCut)
      tensor.shape[static_cast<size_t>(dim)] = static_cast<uint64_t>(position);
    result.push_back(std::move(tensor));
  }
  return result;
}

const std::vector<StoredCheckpoint::Piece>& StoredCheckpoint::pieces_of(
    const std::string& name) const {
  const auto found = pieces_.find(name);
  if (found == pieces_.end()) {
    throw DataError(fmt::format(
        "[checkpoint] '{}' holds no tensor '{}'", directory_.string(), name));
  }
  return found->second;
}

}  // namespace brigade

#include "brigade/safetensors/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/base/units.h"
#include "brigade/files/usual_path.h"
#include "brigade/json/fault_text.h"
#include "brigade/json/parse.h"
#include "brigade/json/string_literal.h"
#include "brigade/json/visit.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxIndexBytes = 16 * MiB;
constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxIndexNames = size_t{1} << 17;

// Keeps the weight_map and lets the rest pass, so that no index, however it is
// made, costs more memory than its names do.
class WeightMapReader final : public JsonVisitor {
 public:
  explicit WeightMapReader(std::string file_name)
      : file_name_(std::move(file_name)) {}

  WeightMap take() {
    if (!has_map_)
      fail("holds no weight_map");
    return std::move(map_);
  }

  bool scalar(json&& value, const JsonPosition& at) override {
    if (in_map_ && value.is_string())
      add(std::move(value.get_ref<std::string&>()));
    else
      refuse_as_map(kind_of(value), at);
    return true;
  }

  bool begin_object(const JsonPosition& at) override {
    if (at.depth() == 1 && key_ == kWeightMap) {
      if (has_map_)
        fail("holds weight_map twice");
      has_map_ = true;
      in_map_ = true;
    } else if (at.depth() > 0) {
      refuse_as_map("an object", at);
    }
    return true;
  }

  bool begin_array(const JsonPosition& at) override {
    refuse_as_map("an array", at);
    return true;
  }

  bool key(std::string& name, const JsonPosition& at) override {
    if (at.depth() <= 2)
      key_ = std::move(name);
    return true;
  }

  bool end_object(const JsonPosition& at) override {
    if (at.depth() == 1)
      in_map_ = false;
    return true;
  }

  [[noreturn]] void fail(const std::string& problem) const {
    throw DataError(
        fmt::format("[safetensors] index '{}' {}", file_name_, problem));
  }

 private:
  static constexpr const char* kWeightMap = "weight_map";

  void add(std::string&& file) {
    if (!stays_in_folder(file)) {
      fail(fmt::format(
          "weight_map sends '{}' to '{}', which is not a file in the same "
          "folder or one below it",
          shown_text(key_),
          shown_text(file)));
    }
    if (map_.size() == kMaxIndexNames)
      fail(fmt::format("names more than {} tensors", kMaxIndexNames));
    if (!map_.emplace(key_, std::move(file)).second)
      fail(fmt::format("weight_map names '{}' twice", shown_text(key_)));
  }

  // Refuses a value where the document, the map or a file's name should be.
  void refuse_as_map(const char* kind, const JsonPosition& at) const {
    if (at.depth() == 0)
      fail(fmt::format("is {}, not an object", kind));
    if (at.depth() == 1 && key_ == kWeightMap)
      fail(fmt::format("holds {} as its weight_map, not an object", kind));
    if (in_map_) {
      fail(fmt::format(
          "weight_map sends '{}' to {}, not to a file's name",
          shown_text(key_),
          kind));
    }
  }

  std::string file_name_;
  WeightMap map_;
  std::string key_;
  bool in_map_ = false;
  bool has_map_ = false;
};

}  // namespace

bool is_bare_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) ==
             std::string_view::npos;
}

bool stays_in_folder(std::string_view path) {
  while (true) {
    const size_t slash = path.find('/');
    if (!is_bare_file_name(path.substr(0, slash)))
      return false;
    if (slash == std::string_view::npos)
      return true;
    path.remove_prefix(slash + 1);
  }
}

bool is_model_folder(const fs::path& folder) {
  std::error_code error;
  const auto files = fs::directory_iterator(folder, error);
  return !error && has_file(folder / "config.json") &&
         !fs::exists(folder / "manifest.json", error) &&
         std::any_of(begin(files), end(files), [](const auto& file) {
           return file.path().extension() == ".safetensors" ||
                  file.path().filename() == kSafetensorsIndex;
         });
}

std::string explain_missing_weights(const fs::path& folder) {
  std::error_code error;
  const auto has = [&](const char* name) {
    return fs::exists(fs::symlink_status(folder / name, error));
  };
  for (const char* name : {kSafetensorsFile, kSafetensorsIndex}) {
    if (has(name))
      return fmt::format("; its {} is a link that leads nowhere", name);
  }
  if (has("adapter_config.json"))
    return "; it is an adapter of PEFT: name its base model, and this folder "
           "with --adapter";
  for (const char* name :
       {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (has(name))
      return fmt::format(
          "; it holds {}, which may run code when it is read: save the model "
          "as safetensors with transformers "
          "(AutoModelForCausalLM.from_pretrained(...).save_pretrained(...))",
          name);
  }
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors")
      return fmt::format(
          "; it holds {}: rename it to {} if these are the weights under "
          "Hugging Face's names",
          entry.path().filename().string(),
          kSafetensorsFile);
  }
  return "";
}

WeightMap read_weight_map(const fs::path& index) {
  const MappedFile file(index);
  if (file.size_bytes() > kMaxIndexBytes) {
    throw DataError(fmt::format(
        "[safetensors] index '{}' has {} bytes, above the limit of {}",
        index.string(),
        file.size_bytes(),
        kMaxIndexBytes));
  }
  return parse_weight_map(file.text(), index.string());
}

WeightMap parse_weight_map(
    std::string_view text,
    const std::string& file_name) {
  WeightMapReader reader(file_name);
  if (const auto fault = visit_json(text, {.max_depth = kMaxDepth}, reader)) {
    const JsonPlace place = place_of(text, fault->offset);
    throw DataError(fmt::format(
        "[safetensors] {}:{}:{}: {}",
        file_name,
        place.line,
        place.column,
        describe(*fault)));
  }
  return reader.take();
}

SafetensorsFolder::SafetensorsFolder(const fs::path& folder) : path_(folder) {
  const fs::path single = folder / kSafetensorsFile;
  const fs::path index = folder / kSafetensorsIndex;
  if (fs::exists(single)) {
    files_.emplace_back(single);
    for (const SafetensorsTensor& tensor : files_.front().tensors())
      tensors_.emplace(tensor.name, &tensor);
  } else if (fs::exists(index)) {
    open_shards(index);
  } else {
    throw DataError(fmt::format(
        "[safetensors] '{}' holds neither {} nor {}{}",
        folder.string(),
        kSafetensorsFile,
        kSafetensorsIndex,
        explain_missing_weights(folder)));
  }
}

void SafetensorsFolder::open_shards(const fs::path& index) {
  std::set<std::string> shards;
  for (const auto& [name, file] : read_weight_map(index))
    shards.insert(file);
  files_.reserve(shards.size());  // tensors_ points into it
  for (const std::string& shard : shards) {
    files_.emplace_back(path_ / shard);
    for (const SafetensorsTensor& tensor : files_.back().tensors())
      tensors_.insert_or_assign(tensor.name, &tensor);
  }
}

const SafetensorsTensor* SafetensorsFolder::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

}  // namespace brigade

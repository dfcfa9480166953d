#include "brigade/safetensors/folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/base/units.h"
#include "brigade/safetensors/scanner.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxIndexBytes = 16 * MiB;
constexpr size_t kMaxIndexNames = size_t{1} << 17;

// Keeps the weight_map and lets the rest pass, so that no index, however it is
// made, costs more memory than its names do.
class WeightMapHandler : public nlohmann::json_sax<json> {
 public:
  explicit WeightMapHandler(std::string file_name)
      : file_name_(std::move(file_name)) {}

  WeightMap take() {
    if (!has_map_)
      fail("holds no weight_map");
    return std::move(map_);
  }

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(int64_t) override { return value("a number"); }
  bool number_unsigned(uint64_t) override { return value("a number"); }
  bool number_float(double, const std::string&) override {
    return value("a number");
  }
  bool binary(json::binary_t&) override { return value("binary"); }
  bool start_array(size_t) override { return start("an array"); }
  bool end_array() override { return end(); }
  bool end_object() override { return end(); }

  bool start_object(size_t) override {
    if (depth_ == 1 && key_ == "weight_map") {
      if (has_map_)
        fail("holds weight_map twice");
      has_map_ = true;
      in_map_ = true;
      ++depth_;
      return true;
    }
    return start("an object");
  }

  bool key(std::string& key) override {
    if (depth_ <= 2)
      key_ = std::move(key);
    return true;
  }

  bool string(std::string& text) override {
    if (!in_map_)
      return value("a string");
    if (!is_bare_file_name(text)) {
      fail(fmt::format(
          "weight_map sends '{}' to '{}', which is not a bare file name in "
          "the same folder",
          shown(key_),
          shown(text)));
    }
    if (map_.size() == kMaxIndexNames)
      fail(fmt::format("names more than {} tensors", kMaxIndexNames));
    if (!map_.emplace(key_, std::move(text)).second)
      fail(fmt::format("weight_map names '{}' twice", shown(key_)));
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception&)
      override {
    fail(fmt::format("is not valid JSON at byte {}", position));
  }

 private:
  std::string file_name_;
  WeightMap map_;
  std::string key_;
  size_t depth_ = 0;
  bool in_map_ = false;
  bool has_map_ = false;

  [[noreturn]] void fail(const std::string& problem) const {
    throw DataError(
        fmt::format("[safetensors] index '{}' {}", file_name_, problem));
  }

  bool value(const char* kind) {
    if (depth_ == 0)
      fail(fmt::format("is {}, not an object", kind));
    if (depth_ == 1 && key_ == "weight_map")
      fail(fmt::format("holds {} as its weight_map, not an object", kind));
    if (in_map_) {
      fail(fmt::format(
          "weight_map sends '{}' to {}, not to a file's name",
          shown(key_),
          kind));
    }
    return true;
  }

  bool start(const char* kind) {
    if (depth_ > 0 || std::string_view(kind) != "an object")
      value(kind);
    ++depth_;
    return true;
  }

  bool end() {
    --depth_;
    if (depth_ == 1)
      in_map_ = false;
    return true;
  }
};

void append_names(
    std::string& text,
    const char* what,
    const std::vector<std::string>& names) {
  if (!names.empty())
    text += fmt::format("; {}: {}", what, fmt::join(names, ", "));
}

}  // namespace

bool is_bare_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) ==
             std::string_view::npos;
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
  return parse_weight_map(
      {reinterpret_cast<const char*>(file.bytes().data()), file.size_bytes()},
      index.string());
}

WeightMap parse_weight_map(
    std::string_view text,
    const std::string& file_name) {
  WeightMapHandler handler(file_name);
  json::sax_parse(text.begin(), text.end(), &handler);
  return handler.take();
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
        "[safetensors] '{}' holds neither {} nor {}",
        folder.string(),
        kSafetensorsFile,
        kSafetensorsIndex));
  }
}

void SafetensorsFolder::open_shards(const fs::path& index) {
  const WeightMap weight_map = read_weight_map(index);
  std::map<std::string, size_t> shard_of;
  for (const auto& [name, file] : weight_map)
    shard_of.emplace(file, 0);
  files_.reserve(shard_of.size());  // tensors_ points into it
  for (auto& [file, shard] : shard_of) {
    shard = files_.size();
    files_.emplace_back(path_ / file);
  }
  std::vector<std::string> absent, unnamed;
  for (const auto& [name, file] : weight_map) {
    const SafetensorsTensor* tensor = files_[shard_of.at(file)].find(name);
    if (tensor == nullptr) {
      absent.push_back(fmt::format("'{}' ({})", shown(name), file));
    } else {
      tensors_.emplace(name, tensor);
    }
  }
  for (const auto& [file, shard] : shard_of) {
    for (const SafetensorsTensor& tensor : files_[shard].tensors()) {
      if (find(tensor.name) != &tensor)
        unnamed.push_back(fmt::format("'{}' ({})", shown(tensor.name), file));
    }
  }
  if (absent.empty() && unnamed.empty())
    return;
  std::string text = fmt::format(
      "[safetensors] index '{}' does not agree with its shards",
      index.string());
  append_names(text, "named there, but in no such shard", absent);
  append_names(text, "in a shard, but not named there for it", unnamed);
  throw DataError(text);
}

const SafetensorsTensor* SafetensorsFolder::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

}  // namespace brigade

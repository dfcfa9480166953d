#include "brigade/data/dataset_info.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/files/file.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kFormat = "brigade-dataset";
constexpr int kVersion = 1;

fs::path info_path(fs::path prefix) {
  prefix += ".json";
  return prefix;
}

// A member of the JSON object, or DataError with its pointer.
template <typename T>
T member(const Json& object, const std::string& key, const fs::path& path) {
  const std::string expected = std::is_same_v<T, std::string> ? "a string"
                               : std::is_same_v<T, Json>      ? "an array"
                                                              : "an integer";
  const auto found = object.find(key);
  const bool fits = found != object.end() &&
                    (std::is_same_v<T, std::string> ? found->is_string()
                     : std::is_same_v<T, Json>      ? found->is_array()
                     : std::is_unsigned_v<T> ? found->is_number_unsigned()
                                             : found->is_number_integer());
  if (!fits) {
    throw DataError(fmt::format(
        "[{}] at /{}: expected {}, found {}",
        path.string(),
        key,
        expected,
        found == object.end() ? "nothing" : found->dump()));
  }
  return found->get<T>();
}

}  // namespace

fs::path dataset_prefix(const fs::path& path) {
  const std::string extension = path.extension().string();
  if (extension != ".bin" && extension != ".idx")
    return path;
  fs::path prefix = path;
  return prefix.replace_extension();
}

std::optional<DatasetInfo> read_dataset_info(const fs::path& prefix) {
  const fs::path path = info_path(prefix);
  if (!fs::exists(path))
    return std::nullopt;
  Json json;
  try {
    json = Json::parse(read_text_file(path));
  } catch (const Json::parse_error& error) {
    throw DataError(
        fmt::format("[{}] at byte {}: not JSON", path.string(), error.byte));
  } catch (const Json::exception& error) {  // a number out of range
    throw DataError(fmt::format("[{}] {}", path.string(), error.what()));
  }
  // A .json of another program beside a dataset is none of our business.
  if (!json.is_object() || json.value("format", Json()) != Json(kFormat))
    return std::nullopt;
  if (member<int64_t>(json, "version", path) != kVersion) {
    throw DataError(fmt::format(
        "[{}] at /version: {}; this program knows {}",
        path.string(),
        json["version"].dump(),
        kVersion));
  }

  DatasetInfo info;
  info.vocab_size = member<int64_t>(json, "vocab_size", path);
  info.tokenizer = member<std::string>(json, "tokenizer", path);
  if (info.tokenizer != "bytes")
    info.tokenizer = (prefix.parent_path() / info.tokenizer).string();
  if (json.contains("eos_id") && !json["eos_id"].is_null())
    info.eos_id = member<int32_t>(json, "eos_id", path);
  info.num_tokens = member<uint64_t>(json, "num_tokens", path);
  info.num_documents = member<uint64_t>(json, "num_documents", path);
  info.token_type = member<std::string>(json, "token_type", path);
  for (const Json& source : member<Json>(json, "sources", path)) {
    info.sources.push_back(
        {.path = member<std::string>(source, "path", path),
         .text_bytes = member<uint64_t>(source, "text_bytes", path),
         .documents = member<uint64_t>(source, "documents", path)});
  }
  return info;
}

void write_dataset_info(const fs::path& prefix, const DatasetInfo& info) {
  Json sources = Json::array();
  for (const DatasetSource& source : info.sources) {
    sources.push_back(
        {{"path", source.path},
         {"text_bytes", source.text_bytes},
         {"documents", source.documents}});
  }
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["vocab_size"] = info.vocab_size;
  json["tokenizer"] = info.tokenizer == "bytes"
                          ? info.tokenizer
                          : fs::proximate(
                                fs::absolute(info.tokenizer),
                                fs::absolute(prefix).parent_path())
                                .string();
  json["eos_id"] = info.eos_id ? nlohmann::ordered_json(*info.eos_id) : nullptr;
  json["num_tokens"] = info.num_tokens;
  json["num_documents"] = info.num_documents;
  json["token_type"] = info.token_type;
  json["sources"] = sources;
  // Paths need not be UTF-8.
  write_text_file(
      info_path(prefix),
      json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void require_vocabulary(
    const DatasetInfo& info,
    int64_t model_vocab_size,
    const fs::path& prefix) {
  if (info.vocab_size <= model_vocab_size)
    return;
  throw ConfigError(fmt::format(
      "[token_dataset] '{}' was prepared with a vocabulary of {}, but the "
      "model's vocab_size is {}: raise vocab_size to {} or prepare the text "
      "with the model's tokenizer",
      prefix.string(),
      info.vocab_size,
      model_vocab_size,
      info.vocab_size));
}

}  // namespace brigade

#include "brigade/data/dataset_info.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/files/digest.h"
#include "brigade/files/file.h"
#include "brigade/json/node.h"
#include "brigade/json/parse.h"
#include "brigade/json/visit.h"
#include "brigade/tokenizer/tokenizer.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kFormat = "brigade-dataset";
constexpr int kVersion = 1;
constexpr int kVersionOfPairs = 2;

fs::path info_path(fs::path prefix) {
  prefix += ".json";
  return prefix;
}

// Stops at the "format" of the outermost object.
class FormatReader final : public JsonVisitor {
 public:
  bool is_ours() const { return is_ours_; }

  bool scalar(Json&& value, const JsonPosition& at) override {
    if (at.depth() != 1 || key_ != "format")
      return at.depth() > 0;
    is_ours_ = value == Json(kFormat);
    return false;
  }
  bool key(std::string& name, const JsonPosition& at) override {
    if (at.depth() == 1)
      key_ = name;
    return true;
  }
  bool begin_array(const JsonPosition& at) override { return at.depth() > 0; }

 private:
  std::string key_;
  bool is_ours_ = false;
};

uint64_t count_at(const JsonNode& object, std::string_view key) {
  return static_cast<uint64_t>(object.at(key).integer(0, INT64_MAX));
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
  const std::string text = read_text_file(path);
  const JsonDocument document(text, {"dataset", path.string()});
  const JsonNode root = document.root();
  // A .json of another program beside a dataset is ignored.
  const bool is_ours = root.value().is_object() &&
                       root.value().value("format", Json()) == Json(kFormat);
  if (!is_ours)
    return std::nullopt;
  const JsonNode version = root.at("version");
  const bool has_pairs = version.value() == Json(kVersionOfPairs);
  if (version.value() != Json(kVersion) && !has_pairs) {
    version.fail(fmt::format(
        "version {}; this program reads version {}, and {} of pairs",
        show_json(version.value()),
        kVersion,
        kVersionOfPairs));
  }

  DatasetInfo info;
  info.vocab_size = root.at("vocab_size").integer(0, INT32_MAX);
  info.tokenizer = root.at("tokenizer").string();
  if (info.tokenizer != "bytes")
    info.tokenizer = (prefix.parent_path() / info.tokenizer).string();
  if (const auto eos = root.find("eos_id"))
    info.eos_id = static_cast<int32_t>(eos->integer(0, INT32_MAX));
  info.num_tokens = count_at(root, "num_tokens");
  info.num_documents = count_at(root, "num_documents");
  if (has_pairs)
    info.num_pairs = count_at(root, "num_pairs");
  info.token_type = root.at("token_type").string();
  for (const JsonNode& source : root.at("sources").elements()) {
    info.sources.push_back(
        {.path = source.at("path").string(),
         .text_bytes = count_at(source, "text_bytes"),
         .documents = count_at(source, "documents")});
  }
  return info;
}

bool is_dataset_info(const fs::path& file) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored))
    return false;
  FormatReader reader;
  try {
    static_cast<void>(visit_json(MappedFile(file).text(), {}, reader));
  } catch (const Error&) {
    return false;
  }
  return reader.is_ours();
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
  json["version"] = info.num_pairs > 0 ? kVersionOfPairs : kVersion;
  json["vocab_size"] = info.vocab_size;
  json["tokenizer"] =
      info.tokenizer == "bytes"
          ? info.tokenizer
          // Not where a link that it replaces leads.
          : fs::absolute(info.tokenizer)
                .lexically_proximate(fs::absolute(prefix).parent_path())
                .string();
  json["eos_id"] = info.eos_id ? nlohmann::ordered_json(*info.eos_id) : nullptr;
  json["num_tokens"] = info.num_tokens;
  json["num_documents"] = info.num_documents;
  if (info.num_pairs > 0)
    json["num_pairs"] = info.num_pairs;
  json["token_type"] = info.token_type;
  json["sources"] = sources;
  // Paths need not be UTF-8.
  write_text_file(info_path(prefix), json_to_text(json, 2) + "\n");
}

void require_tokenizer(
    const DatasetInfo& info,
    const std::string& tokenizer,
    const fs::path& prefix) {
  constexpr const char* kBytes = "bytes";
  const bool both_are_files = info.tokenizer != kBytes && tokenizer != kBytes;
  if (both_are_files && !fs::exists(info.tokenizer))
    return;
  const bool are_equal = both_are_files
                             ? sha256_of_file(tokenizer_file(info.tokenizer)) ==
                                   sha256_of_file(tokenizer_file(tokenizer))
                             : info.tokenizer == tokenizer;
  if (are_equal)
    return;
  throw ConfigError(fmt::format(
      "[config] /dataset/tokenizer = \"{}\", but '{}' was prepared with '{}', "
      "which is another tokenizer: leave /dataset/tokenizer out, or prepare "
      "the text again with the one you want",
      tokenizer,
      prefix.string(),
      info.tokenizer));
}

}  // namespace brigade

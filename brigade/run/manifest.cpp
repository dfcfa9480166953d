#include "brigade/run/manifest.h"

#include <fmt/format.h>

#include <limits>

#include "brigade/json/node.h"
#include "brigade/json/parse.h"
#include "brigade/safetensors/folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFormat = "brigade checkpoint";
constexpr int kVersion = 2;
constexpr int kUnverifiedVersion = 1;
constexpr const char* kDigestKey = "sha256";  // of the rest of the manifest

std::string digest_of(json manifest) {
  manifest.erase(kDigestKey);
  return sha256_of_text(manifest.dump());
}

// "model.safetensors", "tokenizer/tokenizer.json".
bool is_inside(const std::string& name) {
  const fs::path path(name);
  if (name.empty() || path.is_absolute())
    return false;
  for (const fs::path& part : path) {
    if (part == ".." || part == "." || part.empty())
      return false;
  }
  return true;
}

int64_t count_at(const JsonNode& from, const char* key) {
  return from.at(key).integer(0, std::numeric_limits<int64_t>::max());
}

void read_common(const JsonNode& from, CheckpointManifest& manifest) {
  manifest.step = count_at(from, "step");
  manifest.tokens = count_at(from, "tokens");
  manifest.dtype = from.at("dtype").string();
  manifest.tokenizer = from.at("tokenizer").string();
  manifest.writers = count_at(from, "writers");
  for (const JsonNode& file : from.at("files").elements()) {
    if (!is_bare_file_name(file.string()))
      file.fail(fmt::format(
          "'{}' is outside the checkpoint's folder", file.string()));
    manifest.files.push_back(file.string());
  }
  manifest.model = from.at("model").value();
  if (const auto source = from.find("model_source"))
    manifest.model_source = source->value();
  manifest.config = from.at("config").value();
  if (const auto base = from.find("base_model"))
    manifest.base_model = base->string();
  if (const auto optimizer = from.find("optimizer"))
    manifest.optimizer = optimizer->value();
  if (const auto choices = from.find("expert_choices"))
    manifest.expert_choices = choices->value();
}

void read_verified(const JsonNode& from, CheckpointManifest& manifest) {
  const JsonNode digest = from.at(kDigestKey);
  if (digest_of(from.value()) != digest.string()) {
    digest.fail(
        "the manifest was changed after it was written (its SHA-256 differs)");
  }
  manifest.samples =
      from.at("samples").integer(-1, std::numeric_limits<int64_t>::max());
  manifest.skipped_steps = count_at(from, "skipped_steps");
  manifest.run = from.at("run").string();
  manifest.data = from.at("data").value();
  const JsonNode contents = from.at("contents");
  contents.require_object();
  for (const auto& item : contents.value().items()) {
    const std::string& name = item.key();
    if (!is_inside(name)) {
      contents.fail_at(
          name, fmt::format("'{}' is outside the checkpoint's folder", name));
    }
    const JsonNode entry = contents.at(name);
    manifest.contents[name] = {
        static_cast<uint64_t>(count_at(entry, "size_bytes")),
        entry.at("sha256").string()};
  }
  for (const std::string& name : manifest.files) {
    if (!manifest.contents.contains(name))
      contents.fail(fmt::format("'{}' has no SHA-256", name));
  }
}

}  // namespace

std::string manifest_to_text(const CheckpointManifest& manifest) {
  json contents = json::object();
  for (const auto& [name, digest] : manifest.contents) {
    contents[name] = {
        {"size_bytes", digest.size_bytes}, {"sha256", digest.sha256}};
  }
  json text = {
      {"format", kFormat},
      {"version", kVersion},
      {"run", manifest.run},
      {"step", manifest.step},
      {"tokens", manifest.tokens},
      {"samples", manifest.samples},
      {"skipped_steps", manifest.skipped_steps},
      {"data", manifest.data},
      {"dtype", manifest.dtype},
      {"tokenizer", manifest.tokenizer},
      {"writers", manifest.writers},
      {"files", manifest.files},
      {"contents", contents},
      {"model", manifest.model},
      {"model_source", manifest.model_source},
      {"config", manifest.config}};
  if (!manifest.base_model.empty())
    text["base_model"] = manifest.base_model;
  if (!manifest.optimizer.is_null())
    text["optimizer"] = manifest.optimizer;
  if (!manifest.expert_choices.is_null())
    text["expert_choices"] = manifest.expert_choices;
  // As a reader will see it: numbers in the form that they are written in.
  text = json::parse(text.dump());
  text[kDigestKey] = digest_of(text);
  return text.dump(2) + "\n";
}

CheckpointManifest read_manifest(const fs::path& directory) {
  const std::string file = (directory / kManifestFile).string();
  const std::string bytes = read_text_file(file);
  const JsonDocument document(bytes, {"checkpoint", file});
  const JsonNode root = document.root();
  if (const JsonNode format = root.at("format"); format.value() != kFormat)
    format.fail("this is not the manifest of a checkpoint of this program");
  const JsonNode version = root.at("version");
  // Only a version 2 has these, whatever it says of itself.
  const bool has_digests = root.find(kDigestKey) || root.find("contents");
  const bool is_unverified =
      version.value() == kUnverifiedVersion && !has_digests;
  if (!is_unverified && version.value() != kVersion) {
    version.fail(fmt::format(
        "version {}; this program reads versions {} and {}",
        show_json(version.value()),
        kUnverifiedVersion,
        kVersion));
  }
  CheckpointManifest manifest;
  read_common(root, manifest);
  if (!is_unverified) {
    // The digest does not cover the end of the last line.
    if (!bytes.ends_with('\n'))
      root.fail("its end is missing");
    read_verified(root, manifest);
  }
  return manifest;
}

}  // namespace brigade

#include "brigade/checkpoint/manifest.h"

#include <fmt/format.h>

#include "brigade/base/error.h"
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

[[noreturn]] void throw_damaged(
    const std::string& file,
    const std::string& reason) {
  throw DataError(
      fmt::format("[checkpoint] '{}' is damaged: {}", file, reason));
}

void read_common(
    const json& from,
    const std::string& file,
    CheckpointManifest& manifest) {
  from.at("step").get_to(manifest.step);
  from.at("tokens").get_to(manifest.tokens);
  from.at("dtype").get_to(manifest.dtype);
  from.at("tokenizer").get_to(manifest.tokenizer);
  from.at("writers").get_to(manifest.writers);
  from.at("files").get_to(manifest.files);
  manifest.model = from.at("model");
  manifest.model_source = from.value("model_source", json());
  manifest.config = from.at("config");
  for (const std::string& name : manifest.files) {
    if (!is_bare_file_name(name)) {
      throw DataError(fmt::format(
          "[checkpoint] '{}' names '{}', which is outside its folder",
          file,
          name));
    }
  }
  if (manifest.step < 0 || manifest.tokens < 0)
    throw_damaged(file, "a negative step or number of tokens");
}

void read_verified(
    const json& from,
    const std::string& file,
    CheckpointManifest& manifest) {
  const auto expected = from.at(kDigestKey).get<std::string>();
  if (digest_of(from) != expected) {
    throw_damaged(
        file, "it was changed after it was written (its SHA-256 differs)");
  }
  from.at("samples").get_to(manifest.samples);
  from.at("skipped_steps").get_to(manifest.skipped_steps);
  from.at("run").get_to(manifest.run);
  manifest.data = from.at("data");
  for (const auto& [name, entry] : from.at("contents").items()) {
    if (!is_inside(name)) {
      throw DataError(fmt::format(
          "[checkpoint] '{}' names '{}', which is outside its folder",
          file,
          name));
    }
    manifest.contents[name] = {
        entry.at("size_bytes").get<uint64_t>(),
        entry.at("sha256").get<std::string>()};
  }
  for (const std::string& name : manifest.files) {
    if (!manifest.contents.contains(name))
      throw_damaged(file, fmt::format("'{}' has no SHA-256", name));
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
  // As a reader will see it: numbers in the form that they are written in.
  text = json::parse(text.dump());
  text[kDigestKey] = digest_of(text);
  return text.dump(2) + "\n";
}

CheckpointManifest read_manifest(const fs::path& directory) {
  const std::string file = (directory / kManifestFile).string();
  const std::string bytes = read_text_file(file);
  const json text = json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  try {
    if (!text.is_object() || text.at("format") != kFormat) {
      throw DataError(fmt::format(
          "[checkpoint] '{}' is not the manifest of a checkpoint of this "
          "program",
          file));
    }
    const json& version = text.at("version");
    // Only a version 2 has these, whatever it says of itself.
    const bool has_digests =
        text.contains(kDigestKey) || text.contains("contents");
    const bool is_unverified = version == kUnverifiedVersion && !has_digests;
    if (!is_unverified && version != kVersion) {
      throw DataError(fmt::format(
          "[checkpoint] '{}' is of version {}; this program reads versions {} "
          "and {}",
          file,
          version.dump(),
          kUnverifiedVersion,
          kVersion));
    }
    CheckpointManifest manifest;
    read_common(text, file, manifest);
    if (!is_unverified) {
      // The digest does not cover the end of the last line.
      if (!bytes.ends_with('\n'))
        throw_damaged(file, "its end is missing");
      read_verified(text, file, manifest);
    }
    return manifest;
  } catch (const json::exception& error) {
    throw_damaged(file, error.what());
  }
}

}  // namespace brigade

#include "brigade/hub/hub.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "brigade/base/error.h"
#include "brigade/files/tokenizer_names.h"
#include "brigade/hub/cache.h"
#include "brigade/hub/download.h"
#include "brigade/safetensors/folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "config.json";

bool wants_tokenizer(const HubContent& content) {
  return content.tokenizer == HubContent::Tokenizer::kWanted;
}

bool wants_weights(const HubContent& content) {
  return content.weights == HubContent::Weights::kWanted;
}

bool has_all_weights(const fs::path& folder) {
  if (fs::exists(folder / kSafetensorsFile))
    return true;
  if (!fs::exists(folder / kSafetensorsIndex))
    return false;
  for (const auto& [name, file] : read_weight_map(folder / kSafetensorsIndex)) {
    if (!fs::exists(folder / file))
      return false;
  }
  return true;
}

bool has_all(const fs::path& folder, const HubContent& content) {
  if (!fs::exists(folder / kConfigFile))
    return false;
  if (wants_tokenizer(content) && find_tokenizer_file(folder).empty())
    return false;
  return !wants_weights(content) || has_all_weights(folder);
}

void check_options(const std::string& id, const HubOptions& options) {
  if (!is_hub_id(id)) {
    throw ConfigError(fmt::format(
        "[hub] '{}' is not the id of a model, which is like "
        "HuggingFaceTB/SmolLM-135M",
        id));
  }
  if (!is_hub_id(options.revision) || !is_bare_file_name(options.revision)) {
    throw ConfigError(fmt::format(
        "[hub] '{}' is not a branch, tag or commit", options.revision));
  }
}

}  // namespace

bool is_hub_id(std::string_view name) {
  const auto is_part = [](std::string_view part) {
    return is_bare_file_name(part) && part.front() != '.' &&
           part.find("..") == std::string_view::npos &&
           part.find("--") == std::string_view::npos &&
           std::all_of(part.begin(), part.end(), [](unsigned char c) {
             return c < 0x80 &&
                    (std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-');
           });
  };
  const auto slash = name.find('/');
  if (slash == std::string_view::npos)
    return is_part(name);
  return is_part(name.substr(0, slash)) && is_part(name.substr(slash + 1));
}

std::optional<fs::path> find_in_hub_cache(
    const std::string& id,
    const HubContent& content,
    const HubOptions& options) {
  check_options(id, options);
  const auto folder =
      HubCache(options.cache_dir, id).snapshot(options.revision);
  if (!folder || !has_all(*folder, content))
    return std::nullopt;
  return folder;
}

fs::path fetch_from_hub(
    const std::string& id,
    const HubContent& content,
    const HubOptions& options) {
  if (const auto folder = find_in_hub_cache(id, content, options))
    return *folder;
  if (options.network == HubOptions::Network::kOffline) {
    throw ConfigError(fmt::format(
        "[hub] '{}' is not in the cache '{}', and HF_HUB_OFFLINE (or "
        "TRANSFORMERS_OFFLINE) forbids to download it",
        id,
        options.cache_dir.string()));
  }
  const HubCache cache(options.cache_dir, id);
  HubDownload download(id, options, cache);
  const HubDownload::Revision revision = download.revision();
  const auto is_there = [&](std::string_view file) {
    return std::find(revision.files.begin(), revision.files.end(), file) !=
           revision.files.end();
  };
  const bool is_sharded = !is_there(kSafetensorsFile);
  if (wants_weights(content) && is_sharded && !is_there(kSafetensorsIndex)) {
    throw ConfigError(fmt::format(
        "[hub] '{}' has no safetensors; its files are: {}",
        id,
        fmt::join(revision.files, ", ")));
  }
  cache.create_folders(revision.commit);
  const fs::path folder = cache.snapshot_of_commit(revision.commit);
  const auto get = [&](const std::string& file) {
    if (!fs::exists(folder / file))
      download.file(revision.commit, file);
  };
  get(kConfigFile);
  if (is_there("generation_config.json"))
    get("generation_config.json");
  if (wants_tokenizer(content)) {
    const auto get_those_there = [&](const auto& files) {
      for (const char* file : files) {
        if (is_there(file))
          get(file);
      }
    };
    get_those_there(kTokenizerFiles);
    get_those_there(kTokenizerDescriptions);
  }
  if (wants_weights(content)) {
    get(is_sharded ? kSafetensorsIndex : kSafetensorsFile);
    if (is_sharded) {
      for (const auto& [name, file] :
           read_weight_map(folder / kSafetensorsIndex)) {
        if (!is_bare_file_name(file)) {
          throw DataError(fmt::format(
              "[hub] {}: the index names '{}', in a folder of its own, which "
              "is not downloaded; fetch the model another way and give its "
              "folder",
              id,
              file));
        }
        get(file);
      }
    }
  }
  // Last, so that a ref leads to whole snapshots only.
  cache.write_ref(options.revision, revision.commit);
  return folder;
}

}  // namespace brigade

// Models by their id on a Hugging Face hub ("HuggingFaceTB/SmolLM-135M"): from
// the cache that huggingface_hub keeps or, where that lacks them, downloaded
// into it. Reads no environment: the caller says where cache and hub are.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace brigade {

// What of a model is wanted.
struct HubContent {
  enum class Tokenizer { kSkip, kWanted };
  enum class Weights { kSkip, kWanted };
  Tokenizer tokenizer = Tokenizer::kWanted;
  Weights weights = Weights::kWanted;
};

struct HubProgress {
  std::string file;
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;  // 0: not known
};

struct HubOptions {
  // HF_HUB_CACHE, or HF_HOME/hub, or ~/.cache/huggingface/hub.
  std::filesystem::path cache_dir;
  std::string endpoint = "https://huggingface.co";  // HF_ENDPOINT
  std::string token;                                // HF_TOKEN; "": none
  std::string revision = "main";                    // branch, tag or commit
  // HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE.
  enum class Network { kAllowed, kOffline };
  Network network = Network::kAllowed;
  int attempts = 5;  // of a transfer that brings nothing new
  std::chrono::milliseconds retry_delay{1000};
  // Called on the caller's thread, at most once a network read.
  std::function<void(const HubProgress&)> on_progress;
};

// Whether a name has the form of an id: NAME or ORG/NAME of letters, digits
// and "._-". (That no folder has this name is for the caller to check first.)
bool is_hub_id(std::string_view name);

// The model's folder in the cache, if all that is wanted is there. No network.
std::optional<std::filesystem::path> find_in_hub_cache(
    const std::string& id,
    const HubContent& content,
    const HubOptions& options);

// The model's folder, downloaded first where the cache lacks something. An
// interrupted download is resumed where it ended, also by a later run; each
// file is checked for size and hash before it gets its name. Processes that
// share the cache wait for one another.
//
// Throws ConfigError when the hub does not know the id or refuses it, or when
// it has no safetensors; DataError when it cannot be reached, or when
// what it sends is damaged; StorageError when the cache cannot be written.
std::filesystem::path fetch_from_hub(
    const std::string& id,
    const HubContent& content,
    const HubOptions& options);

}  // namespace brigade

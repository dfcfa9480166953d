// Where Hugging Face's cache and hub are, from the variables that
// huggingface_hub reads: HF_HUB_CACHE, HF_HOME, HF_ENDPOINT, HF_TOKEN,
// HF_HUB_OFFLINE.
#pragma once

#include <filesystem>

#include "brigade/checkpoint/hub.h"
#include "brigade/launch/environment.h"

namespace brigade::cli {

HubOptions hub_options(const GetEnv& getenv);

// For what brigade measures of this machine: XDG_CACHE_HOME/brigade or
// ~/.cache/brigade; empty when there is no home.
std::filesystem::path cache_folder(const GetEnv& getenv);

}  // namespace brigade::cli

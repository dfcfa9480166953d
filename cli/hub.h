// Where Hugging Face's cache and hub are, from the variables that
// huggingface_hub reads: HF_HUB_CACHE, HF_HOME, HF_ENDPOINT, HF_TOKEN,
// HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE.
#pragma once

#include <filesystem>
#include <string>

#include "brigade/config/train_config.h"
#include "brigade/hub/hub.h"
#include "brigade/launch/environment.h"

namespace brigade::cli {

HubOptions hub_options(const GetEnv& getenv);

// Downloads the files of an id that the config needs and this machine lacks,
// and fills in config.model; called before any rank starts. `token` in place of
// HF_TOKEN, unless it is empty.
void fetch_model_if_missing(TrainConfig& config, const std::string& token = "");

// Where brigade keeps what it measures of this machine: XDG_CACHE_HOME/brigade
// or ~/.cache/brigade; empty when there is no home.
std::filesystem::path cache_folder(const GetEnv& getenv);

}  // namespace brigade::cli

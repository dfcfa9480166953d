#include "cli/hub.h"

#include <cctype>
#include <memory>
#include <string>

#include "brigade/base/readable.h"
#include "cli/rate_bar.h"
#include "cli/standard_streams.h"

namespace brigade::cli {

namespace fs = std::filesystem;

namespace {

std::string text(const GetEnv& getenv, const char* name) {
  return getenv(name).value_or("");
}

// As huggingface_hub's constants.py takes it.
bool is_true(std::string value) {
  for (char& c : value)
    c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

fs::path user_cache(const GetEnv& getenv) {
  const std::string cache = text(getenv, "XDG_CACHE_HOME");
  const std::string home = text(getenv, "HOME");
  if (!cache.empty())
    return cache;
  return home.empty() ? fs::path() : fs::path(home) / ".cache";
}

}  // namespace

HubOptions hub_options(const GetEnv& getenv) {
  HubOptions options;
  const std::string hub_cache = text(getenv, "HF_HUB_CACHE");
  const std::string hf_home = text(getenv, "HF_HOME");
  if (!hub_cache.empty())
    options.cache_dir = hub_cache;
  else if (!hf_home.empty())
    options.cache_dir = fs::path(hf_home) / "hub";
  else
    options.cache_dir = user_cache(getenv) / "huggingface" / "hub";
  if (const auto endpoint = text(getenv, "HF_ENDPOINT"); !endpoint.empty())
    options.endpoint = endpoint;
  options.token = text(getenv, "HF_TOKEN");
  std::string offline = text(getenv, "HF_HUB_OFFLINE");
  if (offline.empty())
    offline = text(getenv, "TRANSFORMERS_OFFLINE");
  if (is_true(offline))
    options.network = HubOptions::Network::kOffline;
  // A bar for each file on a terminal, and a line for each that is complete.
  options.on_progress =
      [bar = std::make_shared<RateBar>()](const HubProgress& progress) {
        bar->show(progress.file, progress.done_bytes, progress.total_bytes);
        if (progress.total_bytes == 0 ||
            progress.done_bytes != progress.total_bytes)
          return;
        bar->clear();
        note(
            "{}: {}\n",
            progress.file,
            readable_bytes(static_cast<double>(progress.done_bytes)));
      };
  return options;
}

void fetch_model_if_missing(TrainConfig& config, const std::string& token) {
  const std::string& name = config.model.name;
  std::error_code ignored;
  if (name.empty() || fs::exists(name, ignored))
    return;
  const bool needs_weights = config.model.init == WeightInit::kPretrained;
  if (config.model.decoder && !needs_weights)
    return;
  HubContent content;
  content.weights =
      needs_weights ? HubContent::Weights::kWanted : HubContent::Weights::kSkip;
  HubOptions options = hub_options(process_environment());
  if (!token.empty())
    options.token = token;
  resolve_model(config, fetch_from_hub(name, content, options));
}

fs::path cache_folder(const GetEnv& getenv) {
  const fs::path cache = user_cache(getenv);
  return cache.empty() ? cache : cache / "brigade";
}

}  // namespace brigade::cli

// What brigade create-config is asked for: picotron's options, and ours.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "brigade/config/train_config.h"
#include "brigade/topology/parallel_dims.h"

namespace brigade::cli {

// Defaults are those of picotron's create_config.py. What is absent here is
// left to the template, or else to `brigade train`.
struct CreateConfigArguments {
  std::filesystem::path out_dir = "tmp";
  std::string exp_name = "dummy_exp";
  ParallelDims dims;
  std::string pp_engine = "1f1b";
  std::optional<std::string> model_name;
  std::optional<int64_t> layers, heads, kv_heads;
  int64_t grad_acc_steps = 1;
  int64_t micro_batch_size = 1;
  int64_t seq_len = 1024;
  std::string subset_name;
  bool use_wandb = false;
  bool use_cpu = false;
  bool use_fused_adam = false;
  std::string hf_token;  // for downloads alone, never written

  // Ours.
  std::filesystem::path base;  // --template
  bool overwrite = false;
  bool downloads = false;  // the config.json of a model that is not here
  std::optional<int> zero_stage;
  std::string dtype;
  std::optional<int64_t> total_train_steps;
  std::string dataset;
  std::vector<std::string> overrides;  // group.key=value
};

// The default of create_config.py.
inline constexpr const char* kDefaultModel =
    "HuggingFaceTB/SmolLM-360M-Instruct";

// Writes out_dir/exp_name/config.json and prints what it comes to. Throws
// ConfigError for what `brigade train` would refuse, and writes nothing then.
void create_config(const CreateConfigArguments& arguments);

}  // namespace brigade::cli

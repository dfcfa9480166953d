// Low-rank adapters as files: the folder that PEFT reads and writes,
//   adapter_config.json          rank, alpha, targets, the base model
//   adapter_model.safetensors    base_model.model.MODULE.lora_A.weight, .lora_B,
//                                of DoRA .lora_magnitude_vector
//
// What else such a folder may ask for (trained biases or embeddings,
// ranks that differ) is refused by name.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "brigade/checkpoint/manifest.h"
#include "brigade/model_spec/decoder_config.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/options/adapter.h"
#include "brigade/param/param.h"
#include "brigade/safetensors/safetensors.h"

namespace brigade {

// Rows of `model` that an adapter's files hold.
std::vector<ParameterRow> adapter_rows(
    const DecoderConfig& model,
    const AdapterOptions& adapter);

// Of a checkpoint of an adapter's run. Throws DataError where its config has
// none.
AdapterOptions adapter_of_run(const CheckpointManifest& manifest);

// A folder that is read.
class AdapterFolder {
 public:
  // Throws DataError naming the file, the key or tensor, and what is wrong.
  explicit AdapterFolder(const std::filesystem::path& folder);

  // Its targets are the linears that the file has adapters of, by their whole
  // names.
  const AdapterOptions& options() const { return options_; }
  // What it says of its base model; may be empty.
  const std::string& base_model() const { return base_model_; }

  // Throws one DataError with every linear that `model` lacks and every shape
  // that is not that of its linear.
  void check_fits(const DecoderConfig& model) const;
  // The whole tensor of a row's name, float32.
  torch::Tensor read_whole(const std::string& name) const;
  // What this rank has of it.
  void read(const Param& param) const;

 private:
  std::filesystem::path path_;
  SafetensorsFile file_;
  AdapterOptions options_;
  std::string base_model_;
};

// What is written.
struct AdapterExport {
  std::filesystem::path out;  // must not exist, or be an empty folder
  DecoderConfig model;
  AdapterOptions options;
  std::string base_model;  // as PEFT will look for it
  // The whole tensor of a row's name, float32.
  std::function<torch::Tensor(const std::string& name)> read;
};

// Writes the folder, in float32 as PEFT does. Returns the number of values.
// Throws ConfigError when `out` holds something, StorageError when the disk
// refuses.
int64_t export_adapter(const AdapterExport& request);

// weight + scale * B A of the linear `module`, its rows scaled to their
// magnitudes where it has them, in float32; read() gives what the rows of the
// table name.
torch::Tensor merged_weight(
    const torch::Tensor& weight,
    const std::string& module,
    const AdapterOptions& options,
    const std::function<torch::Tensor(const std::string& name)>& read);

}  // namespace brigade

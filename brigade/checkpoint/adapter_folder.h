// Low-rank adapters as files: the folder that PEFT reads and writes,
//   adapter_config.json          rank, alpha, targets, the base model
//   adapter_model.safetensors    base_model.model.MODULE.lora_A.weight,
//                                .lora_B.weight, for DoRA also
//                                .lora_magnitude_vector
//
// Experts' adapters are read in either form (adapter_names.h) and written as
// those of linears of their own, which PEFT reads too.
//
// What else such a folder may ask for (trained biases or embeddings,
// ranks or alphas that differ) is refused by name.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "brigade/checkpoint/adapter_names.h"
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

// A folder that is read.
class AdapterFolder {
 public:
  // Reads an adapter of `model`. Throws DataError naming the file, the key, or
  // every tensor that is of no linear of the model, has not its shape, or is
  // missing.
  AdapterFolder(
      const std::filesystem::path& folder,
      const DecoderConfig& model);

  // Its targets are the linears that the file has adapters of, by their whole
  // names; its rank is the highest of them.
  const AdapterOptions& options() const { return options_; }
  // What it says of its base model; may be empty.
  const std::string& base_model() const { return base_model_; }

  // The whole tensor of a row's name, float32; with zeros behind a lower rank.
  // Throws DataError for values that are not finite.
  torch::Tensor read_whole(const std::string& name) const;
  // What this rank has of it.
  void read(const Param& param) const;

 private:
  // alphas: by the experts' parameter that has its own. A pattern may name
  // other linears, too.
  void check_alphas(
      const std::filesystem::path& folder,
      const std::map<std::string, double>& alphas) const;
  void set_scales(const std::map<std::string, double>& alphas);
  void check_magnitudes(
      const std::filesystem::path& folder,
      const DecoderConfig& model) const;

  SafetensorsFile file_;
  AdapterOptions options_;
  std::string base_model_;
  std::map<std::string, StoredAdapterPart> parts_;  // by row
  // What B is multiplied with: scales of an experts' parameter of its own over
  // that of the others.
  std::map<std::string, double> factors_;
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

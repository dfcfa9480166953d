// Where the file of an adapter keeps the A, B and magnitude of each linear:
// under their own names, or, of a layer's experts together, as PEFT names the
// adapters of a parameter [E, out, in] (its target_parameters), which is how
// transformers 5 has experts in memory:
//
//   MODULE.lora_A.weight       [E * rank, in]   expert after expert
//   MODULE.lora_B.weight       [out, rank * E]  an expert's are E columns apart
//
// MODULE is ...mlp.experts where one parameter is adapted; where both are, it
// is that of down_proj, and ...mlp.experts.base_layer that of gate_up_proj,
// whose A gate and up share.
//
// Private to brigade/checkpoint.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "brigade/model_spec/decoder_config.h"
#include "brigade/safetensors/safetensors.h"

namespace brigade {

inline constexpr const char* kGateUp = "gate_up_proj";
inline constexpr const char* kDown = "down_proj";

// What a row of the model's table is in the file: a matrix of which neighbours
// along its dims are so many elements apart; or a vector, as one column.
struct StoredAdapterPart {
  const SafetensorsTensor* tensor = nullptr;
  int64_t first = 0;  // element
  int64_t rows = 0, row_step = 0;
  int64_t columns = 0, column_step = 0;
  int64_t rank = 0;  // of A and of B; 0: a magnitude
  // The experts' parameter that it is of; empty: its own tensor.
  std::string parameter;
};

// What an adapter's config says of its tensors.
struct AdapterNameOptions {
  int64_t rank = 0;  // of those under names of their own
  bool use_dora = false;
  std::vector<std::string> target_parameters;
  // Of linears that all must have a part, but for routers and experts, which
  // are no linears to transformers 5; empty: no list decides it alone.
  std::vector<std::string> target_modules;
};

// The parts by the name of a row of `model` with adapters. Throws one DataError
// with every tensor that is wrong or missing: of a linear that the model lacks,
// without its counterpart, of another shape. `place` begins its message.
std::map<std::string, StoredAdapterPart> locate_adapter(
    const SafetensorsFile& file,
    const DecoderConfig& model,
    const AdapterNameOptions& options,
    const std::string& place);

// The values, float32 [rows, columns], of a magnitude [rows].
torch::Tensor read_part(const StoredAdapterPart& part);

// Without PEFT's "base_model.model.".
std::string own_adapter_name(std::string_view stored);
// With it.
std::string stored_adapter_name(const std::string& name);

}  // namespace brigade

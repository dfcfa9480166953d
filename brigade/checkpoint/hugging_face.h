// Loading Hugging Face's weights into tensors that exist already: of a whole
// model or of one rank's part of it. Only the slices asked for are read from
// the mapped files, one at a time, so that the peak of host memory is the
// destinations plus one tensor.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "brigade/checkpoint/hugging_face_names.h"
#include "brigade/checkpoint/tensor_part.h"
#include "brigade/model_spec/decoder_config.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/param/param.h"
#include "brigade/safetensors/folder.h"

namespace brigade {

// The tensors of a whole model in a folder.
//
// `expected` is the table of the whole model, on every rank: tensors of it that
// the folder lacks, tensors of the folder that it lacks, and wrong shapes and
// dtypes are all listed by name in one DataError, before any tensor is read.
// Accepted, as by transformers:
//  * the names that a model without a head is saved under ("layers.0...", not
//    "model.layers.0...");
//  * the shared matrix of a tied model under the head's name;
//  * tensors of modules that the model lacks, and those that are no floats;
//  * parameters of one group (q, k and v; gate and up) as one tensor under the
//    group's name, stacked along dim 0;
//  * the head of a model whose head is tied, if equal to the embedding;
//  * buffers of old programs that nobody needs (is_obsolete_buffer()).
class FolderWeights {
 public:
  // `folder` must outlive it.
  FolderWeights(
      const SafetensorsFolder& folder,
      const std::vector<ParameterRow>& expected);
  // Fills part.tensor (any float dtype, device, strides; padding is zeroed)
  // from an F64, F32, F16 or BF16 tensor, rounding to nearest even where it is
  // narrower. Throws DataError naming file and tensor for a value that is not
  // finite.
  void read(const State& part) const;

 private:
  const SafetensorsFolder& folder_;
  std::map<std::string, StoredTensor> located_;
};

// A folder with the place of each tensor in it.
struct OpenFolder {
  // Throws as FolderWeights() and SafetensorsFolder() do.
  OpenFolder(
      const std::filesystem::path& path,
      const std::vector<ParameterRow>& expected)
      : folder(path), weights(folder, expected) {}
  OpenFolder(const OpenFolder&) = delete;
  OpenFolder& operator=(const OpenFolder&) = delete;
  SafetensorsFolder folder;
  FolderWeights weights;  // of `folder`
};

// Fills every part. A name may come several times (a tied head on another
// stage).
void load_weights(
    const SafetensorsFolder& folder,
    const std::vector<ParameterRow>& expected,
    const std::vector<State>& parts);

// Fills `params`, except an adapter's, from the safetensors of `folder`, which
// must be those of the whole model `decoder` (on every rank, whatever part it
// holds): model.init "pretrained". Padding is zeroed.
void load_pretrained(
    const std::filesystem::path& folder,
    const DecoderConfig& decoder,
    std::span<const Param> params);

// The dtype in which the model of a config.json is computed and exported:
// "bfloat16" where it says so, else "float32". float16 has no kernels on CPUs;
// float32 holds all its values.
std::string dtype_of_config(const nlohmann::json& config);

}  // namespace brigade

// The weights of a model on disk, one tensor at a time, as float32.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "brigade/checkpoint/checkpoint.h"
#include "brigade/model_spec/decoder_config.h"
#include "brigade/safetensors/folder.h"

namespace brigade {

using ReadValues = std::function<std::vector<float>(const std::string& name)>;

// Those of a contiguous float32 tensor on the CPU.
std::vector<float> values_in(const torch::Tensor& tensor);

// The weights of a checkpoint, which must outlive the result. The function
// throws DataError for a tensor that is missing or of another shape.
ReadValues values_of_checkpoint(
    const Checkpoint& checkpoint,
    const DecoderConfig& config);

// The weights of a Hugging Face folder, which is checked at once: throws what
// FolderWeights() throws.
ReadValues values_of_folder(
    const std::filesystem::path& folder,
    const DecoderConfig& config);

}  // namespace brigade

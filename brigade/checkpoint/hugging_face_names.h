// Where a folder keeps the tensors of a model: under their own names or as
// groups.
// Private to brigade/checkpoint, which reads them by hugging_face.h.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/model_spec/parameter_table.h"
#include "brigade/model_spec/shard.h"
#include "brigade/safetensors/folder.h"

namespace brigade {

struct StoredTensor {
  const SafetensorsTensor* stored = nullptr;
  // The part of `stored` that is the expected tensor. A layer's experts
  // together are read as the matrix of all their rows.
  Slice slice;
};

// Expected name -> where it is. Throws the DataError of FolderWeights().
std::map<std::string, StoredTensor> locate_tensors(
    const SafetensorsFolder& folder,
    const std::vector<ParameterRow>& expected);

// What transformers 5 calls a parameter in memory: Mixtral's block has another
// name there than in the files of a tensor per expert.
std::string name_in_memory(std::string_view name);

}  // namespace brigade

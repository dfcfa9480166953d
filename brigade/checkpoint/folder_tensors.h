// The tensors of a Hugging Face folder that is written, and what each is made
// of. Private to brigade/checkpoint.
#pragma once

#include <vector>

#include "brigade/model_spec/parameter_table.h"
#include "brigade/options/expert_tensors.h"
#include "brigade/safetensors/dtype.h"
#include "brigade/safetensors/writer.h"

namespace brigade {

struct FolderTensor {
  TensorSpec spec;
  // One, which is the tensor; or the matrices of a layer's experts, of which
  // each has its rows (ParameterRow::stack_row).
  std::vector<ParameterRow> rows;
};

// The tensors of a whole model in the table's order; experts together stand
// where the first one would. `dtype`: that of all rows but the float32 ones.
std::vector<FolderTensor> list_folder_tensors(
    const std::vector<ParameterRow>& model,
    SafetensorsDtype dtype,
    ExpertTensors experts);

}  // namespace brigade

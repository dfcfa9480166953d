// A model's parameters as llama.cpp's tensors: their names, and how their
// values differ.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brigade/model_spec/decoder_config.h"
#include "brigade/model_spec/parameter_table.h"

namespace brigade {

// One parameter, as GGUF has it.
struct TensorForm {
  // "blk.0.attn_q.weight". The experts of a layer have one tensor together,
  // [E, rows, columns].
  std::string name;
  // As PyTorch writes shapes.
  std::vector<uint64_t> shape = {};
  // Which of the stacked matrices it is, for an expert's.
  std::optional<int64_t> expert = {};
  // Rows whose order differs: of each of so many heads, row 2i + j in GGUF is
  // row i + j * D / 2 here, because llama.cpp's llama rotates neighbouring
  // pairs. 0: the order is the same.
  int64_t rotated_heads = 0;
  // Gemma's norms multiply by 1 + w; GGUF has 1 + w.
  bool has_one_added = false;
};

// Precondition: the row is of a model of that config.
TensorForm tensor_form(const ParameterRow& row, const DecoderConfig& config);

// Change `values` in place, between the parameter's (row-major, whole) and
// GGUF's.
void to_gguf(
    const TensorForm& form,
    const std::vector<int64_t>& shape,
    std::vector<float>& values);
void from_gguf(
    const TensorForm& form,
    const std::vector<int64_t>& shape,
    std::vector<float>& values);

}  // namespace brigade

// A model with experts made of a dense one (arXiv:2212.05055): each expert
// begins as a copy of the layer's MLP, the router at random. Where a token's
// weights are divided by their sum, the model begins as the dense one.
//
// Core layer: no libtorch, no files.
#pragma once

#include <cstdint>
#include <string>

#include "brigade/model_spec/decoder_config.h"
#include "brigade/model_spec/parameter_table.h"

namespace brigade {

struct UpcycleOptions {
  int64_t experts = 8;    // of each layer
  int64_t per_token = 2;  // that a token visits
};

// Llama and Mistral become Mixtral, Qwen3 Qwen3-MoE, which have the same
// attention. Throws ConfigError that names what has no counterpart.
DecoderConfig upcycled(
    const DecoderConfig& dense,
    const UpcycleOptions& options);

// What a parameter of the upcycled model begins as: the name of the dense
// model's; "": it has none (a router).
std::string dense_name_of(
    const ParameterRow& row,
    const ModelDescription& upcycled);

}  // namespace brigade

// The parameters of low-rank adapters (options/adapter.h) as rows of the
// model's table, beside those of the linears that they adapt:
//
//   MODULE.weight         [out, in]   frozen, of the base model
//   MODULE.lora_A.weight  [rank, in]  cut as the weight where its inputs are
//   MODULE.lora_B.weight  [out, rank] cut as the weight where its outputs are
//   MODULE.lora_magnitude_vector [out]  of DoRA: cut as B; float32 in a model
//                                       of any dtype, as PEFT has it
//
// The one of A and B that is not cut is whole on every tp rank, and each rank
// computes the gradient of its own outputs or inputs: a part of the sum. A
// magnitude that is not cut is applied to sums, as a bias is. A router's A and
// B are whole, as it is; those of an expert are with it on the ranks that hold
// it.
//
// Core layer: no libtorch, no files.
#pragma once

#include <string>
#include <vector>

#include "brigade/model_spec/parameter_table.h"
#include "brigade/options/adapter.h"

namespace brigade {

// What their names have behind MODULE.
inline constexpr const char* kLoraA = ".lora_A.weight";
inline constexpr const char* kLoraB = ".lora_B.weight";
inline constexpr const char* kLoraMagnitude = ".lora_magnitude_vector";

// Freezes `rows`, which belong to a base model, and adds the adapters' behind
// the rows of their unit. Initial values as PEFT's: A uniform in
// (-1/sqrt(in), 1/sqrt(in)), B zero, magnitudes the norms of the weight's rows.
std::vector<ParameterRow> with_adapters(
    std::vector<ParameterRow> rows,
    const AdapterOptions& adapter);

// The linear MODULE of "MODULE.lora_A.weight", "MODULE.lora_B.weight" or
// "MODULE.lora_magnitude_vector"; empty: another name.
std::string adapted_module(const std::string& name);

// The first linear with an adapter whose rows' norms do not train
// (AdapterOptions::use_dora): a router's, or an expert's. Empty: none is.
std::string linear_without_magnitude(
    const ModelDescription& model,
    const AdapterOptions& adapter);

// Adds one message for each target that names no linear of the layers of
// `model`, with the names that there are.
void check_targets(
    const ModelDescription& model,
    const AdapterOptions& adapter,
    std::vector<std::string>& problems);

}  // namespace brigade

// What the parts of a model need to know of their surroundings.
#pragma once

#include <torch/types.h>

#include "brigade/model/llama_config.h"
#include "brigade/ops/attention.h"
#include "brigade/ops/weight_grad.h"

namespace brigade {

struct ModelContext {
  LlamaConfig config;
  torch::ScalarType dtype = torch::kFloat;
  // kAccumulate once a GradSync keeps .grad() defined
  // (GradHandover::kMainGrad).
  ops::WeightGrad weight_grad = ops::WeightGrad::kReturn;
};

// The tokens of one micro-batch on this rank. B rows, T local tokens.
struct MicroBatch {
  torch::Tensor ids;              // int64 [B, T]
  torch::Tensor targets;          // int64 [B, T]; -100: no loss
  torch::Tensor document_starts;  // int64 [B, T] or undefined: one document
};

}  // namespace brigade

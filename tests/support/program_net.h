// The module of a random program.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <vector>

#include "tests/support/random_program.h"

namespace brigade::testing {

// Whether this forward goes through the branch.
enum class BranchUse { kSkip, kUse };

class ProgramNet : public torch::nn::Module {
 public:
  // Parameters get values that differ and depend on the options alone.
  explicit ProgramNet(const ProgramNetOptions& options);

  // features: [B, F] of float, ids: [B] of int64. Returns each head's [B,
  // outputs], or [B, vocabulary] of one that is tied to the embedding.
  std::vector<torch::Tensor> forward(
      const torch::Tensor& features,
      const torch::Tensor& ids,
      BranchUse branch);

  // One that every first loss depends on and that is trained.
  torch::Tensor first_weight() const { return in_->weight; }

 private:
  ProgramNetOptions options_;
  torch::nn::Linear in_{nullptr};
  torch::nn::Embedding embedding_{nullptr};
  torch::nn::ModuleList layers_;
  torch::nn::ModuleList norms_;
  torch::nn::Linear branch_{nullptr};
  torch::nn::Linear head_{nullptr};
  torch::nn::Linear second_{nullptr};
  torch::nn::Linear tower_{nullptr};
};

}  // namespace brigade::testing

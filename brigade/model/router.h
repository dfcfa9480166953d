// The router of a layer with experts: which experts each token visits, with
// which weights, and what is added to the loss so that they are used evenly.
//
// Logits, scores and weights are float32 (float64 of such a model), whatever
// the model's dtype: bf16 scores have ties, and another choice is another
// model.
//
// A bias for the choice alone (DeepSeek-V3) gets no gradient: between steps it
// moves towards even use (train/router_balance.h).
//
// The two losses are sums over the tokens that count in the model's loss, so
// that they are divided by the same number and depend on no layout:
//   balance  weight * E * sum over e of f_e p_te, where p_te is the token's
//            score of expert e, as a share of its scores, and f_e the share of
//            expert e in the choices of the token's sequence, a constant
//            (DeepSeek-V3, arXiv:2412.19437, eq. 17-20, with E / k in place of
//            the number of experts per token): 1 per token where even. With
//            RouterRecord::shares f_e is that of all tokens of the last
//            step that count in its loss (Experts gives it): those of this
//            step would have to be known before its first backward
//   z        weight * logsumexp(logits)^2 (arXiv:2202.08906)
// The layer adds their gradients in its own backward; the model's loss is that
// of its tokens alone.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "brigade/expert_parallel/expert_exchange.h"
#include "brigade/model/model_context.h"
#include "brigade/model/weights.h"
#include "brigade/ops/expert_rows.h"

namespace brigade {

// What a layer with experts knows of its tokens.
struct ExpertInputs {
  // bool [N]: tokens that have a loss; undefined: nothing is learned.
  torch::Tensor has_loss;
  int64_t sequences = 1;  // among which the N tokens are divided evenly
  // How many tokens an expert takes in each sequence, over that of even use; 0:
  // all.
  double capacity_factor = 0;
};

// What a layer that is computed again in backward keeps of its first run: an
// expert that is chosen otherwise would be another computation.
struct KeptRouting {
  torch::Tensor experts;  // undefined: the first run is to come
  torch::Tensor load;  // [sequences, E]: f; undefined: not needed, or not yet
  ops::ExpertOrder order;
  ExpertExchange exchange;
  // int64, of the rows that this rank's experts get, by the exchange's part;
  // empty: no dropout.
  std::vector<torch::Tensor> row_keys;
};

class Router {
 public:
  // Registers its weight in `parent`, as "gate".
  Router(
      torch::nn::Module& parent,
      ModelContextPtr context,
      const ExpertsDescription& description,
      const ParameterSource& source);

  // x: [n, C], this rank's tokens. Returns the weights, [n, k], and fills in
  // kept.experts, int64 [n, k], unless it is there. Collective over cp, and
  // with divided tokens over tp, where the balance loss is on.
  torch::Tensor route(
      const torch::Tensor& x,
      const ExpertInputs& inputs,
      KeptRouting& kept) const;
  // The sum of the squares of its weight, without an adapter: float64, a
  // scalar.
  torch::Tensor squares() const;

 private:
  torch::Tensor losses(
      const torch::Tensor& logits,
      const torch::Tensor& scores,
      const ExpertInputs& inputs,
      KeptRouting& kept) const;
  // float [sequences, E]: f above.
  torch::Tensor load_of(
      const torch::Tensor& experts,
      const torch::Tensor& sequence,
      const torch::Tensor& has_loss,
      int64_t sequences) const;

  ModelContextPtr context_;
  ExpertsDescription description_;
  std::shared_ptr<Weights> gate_;
};

}  // namespace brigade

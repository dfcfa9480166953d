// The losses of pairs of a chosen answer w and a rejected answer l to one
// prompt. With log p the sum of the log-probabilities of an answer's counting
// tokens, n their number, log r what the reference model says, and means over
// an answer written a = log p / n:
//
//   DPO    -log sigmoid(beta ((log p_w - log r_w) - (log p_l - log r_l)))
//          (Rafailov et al. 2023, arXiv 2305.18290)
//   SimPO  -log sigmoid(beta (a_w - a_l) - gamma)
//          (Meng et al. 2024, arXiv 2405.14734)
//   ORPO   -a_w - beta log sigmoid(odds(a_w) - odds(a_l)),
//          odds(a) = a - log(1 - e^a)
//          (Hong et al. 2024, arXiv 2403.07691)
//
// The loss of a step is their mean over the pairs of the global batch, whatever
// the layout. A new loss of pairs is a value of LossKind, a case of
// pair_losses(), its name in `only_with` of the keys that it reads
// (config/training_keys.cpp), and in LossOptions::needs_reference() where it
// compares with a reference model.
#pragma once

#include <torch/types.h>

#include "brigade/comm/communicator.h"
#include "brigade/metrics/metrics.h"
#include "brigade/model/model_context.h"
#include "brigade/ops/cross_entropy.h"
#include "brigade/options/preference.h"

namespace brigade {

// Sums over the answers of P pairs, float64 [P, 2], chosen answers first.
struct PairSums {
  torch::Tensor log_probs;
  torch::Tensor tokens;     // that count
  torch::Tensor reference;  // log-probabilities; undefined: none
};

struct PairLosses {
  torch::Tensor losses;     // float64 [P]
  torch::Tensor gradients;  // float64 [P, 2]: by each log-probability
  // float64 [P, 2], for people: beta times what the loss compares, log p -
  // log r, or a.
  torch::Tensor rewards;
};

PairLosses pair_losses(const LossOptions& options, const PairSums& sums);

// The objective of the stage with the head. Called by one thread.
class PreferenceLoss {
 public:
  // `sequence`: the ranks that divide each sequence.
  PreferenceLoss(const LossOptions& options, CommunicatorPtr sequence);

  // The objective of a micro-batch whose rows are pairs, 2 p the chosen answer
  // and 2 p + 1 the rejected one; losses: [B * T] of its tokens. The value is 0
  // but on the first of these ranks, so that a sum over ranks counts each pair
  // once; the gradient is that of this rank's tokens. One all-reduce of 2 B
  // numbers over them.
  ops::Objective operator()(
      const MicroBatch& batch,
      const torch::Tensor& losses);

  // Sums over the pairs since the last call, counted once over these
  // ranks: float64 [6]; see means().
  torch::Tensor take_sums();
  // The means of such sums, added up over ranks. At least one pair.
  static PreferenceMetrics means(const torch::Tensor& sums);

 private:
  LossOptions options_;
  CommunicatorPtr sequence_;
  torch::Tensor sums_;  // undefined: of no pair
};

}  // namespace brigade

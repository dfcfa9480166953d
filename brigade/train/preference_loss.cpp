#include "brigade/train/preference_loss.h"

#include <utility>

#include "brigade/base/check.h"

namespace brigade {
namespace {

using torch::Tensor;

// What metrics are means of, over pairs.
enum PairSum {
  kPairs,
  kChosenReward,
  kRejectedReward,
  kRightOrder,  // the chosen answer has the larger reward
  kChosenLogProb,
  kRejectedLogProb,
  kNumPairSums
};

// -log sigmoid(x), finite wherever x is.
Tensor minus_log_sigmoid(const Tensor& x) {
  return -torch::log_sigmoid(x);
}

// [P] as [P, 2] with the other sign for rejected answers.
Tensor both_ways(const Tensor& by_difference) {
  return torch::stack({by_difference, -by_difference}, 1);
}

Tensor chosen_minus_rejected(const Tensor& values) {
  return values.select(1, 0) - values.select(1, 1);
}

PairLosses dpo(double beta, const PairSums& sums) {
  BRIGADE_ASSERT(sums.reference.defined());
  const Tensor rewards = beta * (sums.log_probs - sums.reference);
  const Tensor margin = chosen_minus_rejected(rewards);
  return {
      minus_log_sigmoid(margin),
      both_ways(-beta * torch::sigmoid(-margin)),
      rewards};
}

PairLosses simpo(double beta, double gamma, const PairSums& sums) {
  const Tensor rewards = beta * sums.log_probs / sums.tokens;
  const Tensor margin = chosen_minus_rejected(rewards) - gamma;
  return {
      minus_log_sigmoid(margin),
      both_ways(-beta * torch::sigmoid(-margin)) / sums.tokens,
      rewards};
}

PairLosses orpo(double beta, const PairSums& sums) {
  // Odds of an answer that is certain are not finite: they are held where
  // float32 cannot tell it from one, and have no gradient there.
  constexpr double kCertain = -1e-7;
  const Tensor exact = sums.log_probs / sums.tokens;
  const Tensor means = exact.clamp_max(kCertain);
  const Tensor misses = -torch::expm1(means);  // 1 - e^a
  const Tensor margin = chosen_minus_rejected(means - misses.log());
  // odds'(a) = 1 / (1 - e^a).
  Tensor gradients = (both_ways(-beta * torch::sigmoid(-margin)) / misses)
                         .masked_fill(exact > kCertain, 0);
  gradients.select(1, 0).sub_(1);
  return {
      beta * minus_log_sigmoid(margin) - means.select(1, 0),
      gradients / sums.tokens,
      beta * means};
}

}  // namespace

PairLosses pair_losses(const LossOptions& options, const PairSums& sums) {
  switch (options.kind) {
    case LossKind::kDpo:
      return dpo(options.beta, sums);
    case LossKind::kOrpo:
      return orpo(options.beta, sums);
    case LossKind::kSimPo:
      return simpo(options.beta, options.gamma, sums);
    case LossKind::kCrossEntropy:
    case LossKind::kDistill:
      break;
  }
  BRIGADE_ASSERT(false, "{} is no loss of pairs", to_string(options.kind));
  return {};
}

PreferenceLoss::PreferenceLoss(
    const LossOptions& options,
    CommunicatorPtr sequence)
    : options_(options), sequence_(std::move(sequence)) {}

ops::Objective PreferenceLoss::operator()(
    const MicroBatch& batch,
    const Tensor& losses) {
  const Tensor counted = batch.has_loss();
  Tensor rows = torch::stack(
      {-losses.reshape(counted.sizes()).to(torch::kDouble).sum(1),
       counted.to(torch::kDouble).sum(1)});
  if (sequence_->size() > 1)
    sequence_->all_reduce(rows)->wait();
  const auto pairs = [](const Tensor& of_rows) {
    return of_rows.reshape({-1, 2});
  };
  const PairSums sums{
      pairs(rows[0]),
      pairs(rows[1]),
      batch.reference.defined() ? pairs(batch.reference) : Tensor()};
  const PairLosses result = pair_losses(options_, sums);

  const bool counts = sequence_->rank() == 0;
  if (counts) {
    const Tensor right =
        (chosen_minus_rejected(result.rewards) > 0).to(torch::kDouble);
    const Tensor step = torch::stack({torch::ones_like(right),
                                      result.rewards.select(1, 0),
                                      result.rewards.select(1, 1),
                                      right,
                                      sums.log_probs.select(1, 0),
                                      sums.log_probs.select(1, 1)})
                            .sum(1);
    sums_ = sums_.defined() ? sums_ + step : step;
  }
  // A token's loss is minus its log-probability.
  const Tensor by_row = -result.gradients.reshape({-1, 1});
  const Tensor value = result.losses.sum();
  return {
      counts ? value : torch::zeros_like(value),
      (by_row * counted).reshape({-1})};
}

Tensor PreferenceLoss::take_sums() {
  Tensor sums = std::exchange(sums_, Tensor());
  return sums.defined() ? sums : torch::zeros({kNumPairSums}, torch::kDouble);
}

PreferenceMetrics PreferenceLoss::means(const Tensor& sums) {
  const auto mean = [&](PairSum which) {
    return sums[which].item<double>() / sums[kPairs].item<double>();
  };
  return {
      .chosen_reward = mean(kChosenReward),
      .rejected_reward = mean(kRejectedReward),
      .accuracy = mean(kRightOrder),
      .chosen_log_prob = mean(kChosenLogProb),
      .rejected_log_prob = mean(kRejectedLogProb)};
}

}  // namespace brigade

#include "brigade/train/preference_loss.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using torch::Tensor;

// The papers' formulas, differentiated by torch. [P] each.
struct Pairs {
  Tensor chosen, rejected;                // log-probabilities
  Tensor chosen_tokens, rejected_tokens;  // how many count
  Tensor chosen_reference, rejected_reference;
};
using Formula = std::function<Tensor(const Pairs&)>;

Tensor ln_sigmoid(const Tensor& x) {
  return -torch::log1p(torch::exp(-x));
}

Tensor log_odds(const Tensor& mean) {
  return mean - torch::log(1 - torch::exp(mean));
}

Formula formula_of(const LossOptions& options) {
  const double beta = options.beta;
  switch (options.kind) {
    case LossKind::kDpo:
      return [beta](const Pairs& p) {
        return -ln_sigmoid(
            beta * ((p.chosen - p.chosen_reference) -
                    (p.rejected - p.rejected_reference)));
      };
    case LossKind::kSimPo:
      return [beta, gamma = options.gamma](const Pairs& p) {
        return -ln_sigmoid(
            beta / p.chosen_tokens * p.chosen -
            beta / p.rejected_tokens * p.rejected - gamma);
      };
    default:
      return [beta](const Pairs& p) {
        const Tensor chosen = p.chosen / p.chosen_tokens;
        const Tensor rejected = p.rejected / p.rejected_tokens;
        return -chosen -
               beta * ln_sigmoid(log_odds(chosen) - log_odds(rejected));
      };
  }
}

Tensor row(const std::vector<double>& values) {
  return torch::tensor(values, torch::kDouble);
}

Pairs some_pairs() {
  return {
      row({-3.5, -40.0, -7.25}).requires_grad_(true),
      row({-6.0, -31.0, -7.0}).requires_grad_(true),
      row({4, 9, 3}),
      row({5, 11, 3}),
      row({-4.0, -42.0, -6.5}),
      row({-5.5, -30.0, -7.5})};
}

PairSums sums_of(const Pairs& p) {
  return {
      torch::stack({p.chosen, p.rejected}, 1).detach(),
      torch::stack({p.chosen_tokens, p.rejected_tokens}, 1),
      torch::stack({p.chosen_reference, p.rejected_reference}, 1)};
}

class PreferenceLosses : public ::testing::TestWithParam<LossOptions> {};

TEST_P(PreferenceLosses, AreThePapersFormulasWithTheirGradients) {
  const Pairs pairs = some_pairs();
  const Tensor expected = formula_of(GetParam())(pairs);
  expected.sum().backward();
  const PairLosses found = pair_losses(GetParam(), sums_of(pairs));
  EXPECT_TRUE(torch::allclose(found.losses, expected.detach(), 1e-12, 1e-12))
      << found.losses << expected;
  const Tensor gradients =
      torch::stack({pairs.chosen.grad(), pairs.rejected.grad()}, 1);
  EXPECT_TRUE(torch::allclose(found.gradients, gradients, 1e-12, 1e-12))
      << found.gradients << gradients;
}

TEST_P(PreferenceLosses, StayFiniteWhereTheAnswersAreFarApart) {
  PairSums sums = sums_of(some_pairs());
  sums.log_probs =
      torch::tensor({{0.0, -1e5}, {-1e5, 0.0}, {0.0, 0.0}}, torch::kDouble);
  const PairLosses found = pair_losses(GetParam(), sums);
  EXPECT_TRUE(found.losses.isfinite().all().item<bool>()) << found.losses;
  EXPECT_TRUE(found.gradients.isfinite().all().item<bool>()) << found.gradients;
}

INSTANTIATE_TEST_SUITE_P(
    All,
    PreferenceLosses,
    ::testing::Values(
        LossOptions{.kind = LossKind::kDpo, .beta = 0.3},
        LossOptions{.kind = LossKind::kSimPo, .beta = 2.0, .gamma = 0.7},
        LossOptions{.kind = LossKind::kOrpo, .beta = 0.25}));

// Two pairs of four tokens, some of which count.
struct SomeBatch {
  MicroBatch batch;
  Tensor losses = torch::arange(1, 17).to(torch::kFloat) / 8;
  SomeBatch() {
    batch.targets = torch::tensor(
        {{-100, 1, 2, -100}, {3, 4, 5, -100}, {6, -100, 7, 8}, {-100, 9, 1, 2}},
        torch::kLong);
    batch.reference = row({-1, -2, -3, -4});
    losses.masked_fill_(batch.targets.flatten() < 0, 0);
  }
};

TEST(PreferenceLoss, GivesEachTokenOfAnAnswerTheAnswersGradient) {
  const LossOptions options{.kind = LossKind::kSimPo, .beta = 2.0};
  SomeBatch some;
  PreferenceLoss loss(options, testing::make_world_of_one());
  const ops::Objective found = loss(some.batch, some.losses);

  Tensor losses = some.losses.to(torch::kDouble).requires_grad_(true);
  const Tensor counts = (some.batch.targets >= 0).to(torch::kDouble).sum(1);
  const Tensor sums =
      -losses.reshape({4, 4}).masked_fill(some.batch.targets < 0, 0).sum(1);
  const auto every = [](const Tensor& of_rows, int64_t first) {
    return of_rows.slice(0, first, 4, 2);
  };
  const Tensor expected = formula_of(options)({every(sums, 0),
                                               every(sums, 1),
                                               every(counts, 0),
                                               every(counts, 1),
                                               {},
                                               {}})
                              .sum();
  expected.backward();
  EXPECT_NEAR(found.value.item<double>(), expected.item<double>(), 1e-12);
  EXPECT_TRUE(torch::allclose(found.gradient, losses.grad(), 1e-12, 1e-12));
}

TEST(PreferenceLoss, MetricsAreMeansOverThePairsSinceTheLastCall) {
  PreferenceLoss loss(
      {.kind = LossKind::kDpo, .beta = 0.5}, testing::make_world_of_one());
  SomeBatch some;
  loss(some.batch, some.losses);
  loss.take_sums();
  loss(some.batch, some.losses);
  loss(some.batch, some.losses);
  const PreferenceMetrics means = PreferenceLoss::means(loss.take_sums());
  // Sums of the losses of tokens that count: 5/8, 18/8, 32/8, 45/8 of the rows.
  EXPECT_DOUBLE_EQ(means.chosen_log_prob, -(5.0 + 32.0) / 16);
  EXPECT_DOUBLE_EQ(means.rejected_log_prob, -(18.0 + 45.0) / 16);
  EXPECT_DOUBLE_EQ(means.chosen_reward, 0.5 * (means.chosen_log_prob + 2));
  EXPECT_DOUBLE_EQ(means.rejected_reward, 0.5 * (means.rejected_log_prob + 3));
  EXPECT_DOUBLE_EQ(means.accuracy, 1);
}

TEST(PreferenceLoss, RanksThatDivideASequenceAgreeOnItsPairs) {
  const LossOptions options{.kind = LossKind::kOrpo, .beta = 0.4};
  const SomeBatch whole;
  PreferenceLoss alone(options, testing::make_world_of_one());
  const ops::Objective expected = alone(whole.batch, whole.losses);
  const Tensor gradient = expected.gradient.reshape({4, 4});
  testing::run_ranks(2, [&](CommunicatorPtr group) {
    PreferenceLoss loss(options, group);
    // Tokens 0 and 3, or 1 and 2.
    const Tensor mine =
        group->rank() == 0 ? torch::tensor({0, 3}) : torch::tensor({1, 2});
    MicroBatch part;
    part.targets = whole.batch.targets.index_select(1, mine);
    const ops::Objective found = loss(
        part, whole.losses.reshape({4, 4}).index_select(1, mine).flatten());
    EXPECT_DOUBLE_EQ(
        found.value.item<double>(),
        group->rank() == 0 ? expected.value.item<double>() : 0.0);
    EXPECT_TRUE(torch::allclose(
        found.gradient.reshape({4, 2}), gradient.index_select(1, mine)));
    EXPECT_EQ(
        loss.take_sums()[0].item<double>(), group->rank() == 0 ? 2.0 : 0.0);
  });
}

}  // namespace
}  // namespace brigade

// Hooks that send fewer bytes than the gradients have, and keep the errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/base/hash.h"
#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/ranks_as_threads.h"

#include <ATen/CPUGeneratorImpl.h>

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::make_world_of_one;
using testing::run_ranks;
using ::testing::ThrowsMessage;
using torch::Tensor;

// Two matrices, one too small to factor, and a vector.
struct Weights {
  Tensor wide = torch::zeros({40, 60}).requires_grad_();
  Tensor small = torch::zeros({3, 5}).requires_grad_();
  Tensor vector = torch::zeros({33}).requires_grad_();

  std::vector<Param> named() const {
    return {{"wide", wide}, {"small", small}, {"vector", vector}};
  }
  // Its gradients are the three tensors of gradient_of().
  void backward(int rank, int step) const;
};

// Low rank plus a small part of full rank.
Tensor wide_gradient(int rank, int step) {
  const auto a = pseudo_random({40, 2}, 7 + rank + 10 * step);
  const auto b = pseudo_random({2, 60}, 3 + rank);
  return a.mm(b) + 0.05 * pseudo_random({40, 60}, 90 + rank + step);
}
Tensor small_gradient(int rank, int step) {
  return pseudo_random({3, 5}, 20 + rank + step);
}
Tensor vector_gradient(int rank, int step) {
  return pseudo_random({33}, 30 + rank + step);
}

void Weights::backward(int rank, int step) const {
  ((wide * wide_gradient(rank, step)).sum() +
   (small * small_gradient(rank, step)).sum() +
   (vector * vector_gradient(rank, step)).sum())
      .backward();
}

GradSyncOptions with_hook(BucketHook hook) {
  GradSyncOptions options;
  options.hook = std::move(hook);
  options.reduction = Reduction::kSum;
  return options;
}

TEST(Int8Hook, SumsWithinItsRoundingAndEquallyOnAllRanks) {
  run_ranks(3, [](const CommunicatorPtr& world) {
    Weights weights;
    BucketedGradSync sync(weights.named(), world, with_hook(int8_hook()));
    weights.backward(world->rank(), 0);
    Tensor exact = torch::zeros({40, 60}, torch::kDouble);
    double largest = 0;
    for (int rank = 0; rank < 3; ++rank) {
      exact += wide_gradient(rank, 0);
      largest += wide_gradient(rank, 0).abs().max().item<double>();
    }
    const double error =
        (weights.wide.grad() - exact).abs().max().item<double>();
    EXPECT_GT(error, 0);
    EXPECT_LE(error, 2 * largest * 0.51 / 127);
    Tensor highest = weights.wide.grad().clone();
    world->all_reduce(highest, ReduceOp::kMax)->wait();
    EXPECT_TRUE(torch::equal(highest, weights.wide.grad()));
  });
}

// A constant gradient, mostly far below its block's rounding step.
TEST(Int8Hook, RoundingErrorsAreSentInLaterSteps) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    auto w = torch::zeros({256}).requires_grad_();
    BucketedGradSync sync({{"w", w}}, world, with_hook(int8_hook()));
    auto gradient = torch::full({256}, 1e-4F);
    gradient[0] = 1;
    Tensor total = torch::zeros({256});
    constexpr int kSteps = 200;
    for (int step = 0; step < kSteps; ++step) {
      sync.reset();
      (w * gradient).sum().backward();
      total += w.grad();
    }
    // Without feedback this would stay 0. The kept error is below two steps.
    const double expected = 2 * kSteps * 1e-4;
    EXPECT_NEAR(total[100].item<double>(), expected, 2 * 2.0 / 127);
    EXPECT_NEAR(total[0].item<double>(), 2 * kSteps, 0.1);
    EXPECT_GT(total.narrow(0, 1, 255).mean().item<double>(), expected / 3);
  });
}

TEST(Int8Hook, SendsAQuarterOfTheBytes) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    auto w = torch::zeros({1024}).requires_grad_();
    BucketedGradSync sync({{"w", w}}, world, with_hook(int8_hook()));
    world->clear_records();
    w.sum().backward();
    int64_t bytes = 0;
    for (const auto& record : world->records())
      bytes += record.bytes;
    EXPECT_EQ(bytes, 2 * 4 * 260);  // an all-reduce counts once, twice here
    EXPECT_EQ(sync.report().buckets[0].bytes, 4 * 260);
  });
}

TEST(Int8Hook, OneHookServesTwoModelsWithoutMixingTheirErrors) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const BucketHook hook = int8_hook();
    auto a = torch::zeros({256}).requires_grad_();
    auto b = torch::zeros({256}).requires_grad_();
    BucketedGradSync of_a({{"w", a}}, world, with_hook(hook));
    BucketedGradSync of_b({{"w", b}}, world, with_hook(hook));
    const auto gradient = pseudo_random({256}, 1);
    (a * gradient).sum().backward();
    (b * gradient).sum().backward();
    EXPECT_TRUE(torch::equal(a.grad(), b.grad()));
  });
}

// ---- PowerSGD

// Algorithms 1 and 2 of arXiv:1905.13727 in float64, with all ranks in one
// process.
class PlainPowerSgd {
 public:
  PlainPowerSgd(int ranks, int64_t n, int64_t m, int64_t rank, Tensor q)
      : q_(std::move(q)) {
    errors_.assign(
        static_cast<size_t>(ranks), torch::zeros({n, m}, torch::kDouble));
    EXPECT_EQ(q_.size(1), rank);
  }
  Tensor sum(const std::vector<Tensor>& gradients) {
    std::vector<Tensor> given;
    Tensor p = torch::zeros({gradients[0].size(0), q_.size(1)}, torch::kDouble);
    for (size_t r = 0; r < gradients.size(); ++r) {
      given.push_back(gradients[r].to(torch::kDouble) + errors_[r]);
      p += given[r].mm(q_);
    }
    p = std::get<0>(torch::linalg_qr(p));
    q_ = torch::zeros_like(q_);
    for (size_t r = 0; r < gradients.size(); ++r) {
      const Tensor own = given[r].t().mm(p);
      errors_[r] = given[r] - p.mm(own.t());
      q_ += own;
    }
    return p.mm(q_.t());
  }

 private:
  Tensor q_;
  std::vector<Tensor> errors_;
};

TEST(PowerSgdHook, IsThePlainAlgorithmOverManySteps) {
  constexpr int kRanks = 3;
  run_ranks(kRanks, [](const CommunicatorPtr& world) {
    Weights weights;
    BucketedGradSync sync(
        weights.named(), world, with_hook(powersgd_hook({.rank = 2})));
    // Only the span of Q matters; the hook begins with these numbers.
    PlainPowerSgd plain(
        kRanks,
        40,
        60,
        2,
        torch::randn(
            {60, 2},
            at::detail::createCPUGenerator(fnv1a_64("wide")),
            torch::TensorOptions(torch::kFloat))
            .to(torch::kDouble));
    for (int step = 0; step < 6; ++step) {
      sync.reset();
      weights.backward(world->rank(), step);
      std::vector<Tensor> wide;
      Tensor small = torch::zeros({3, 5}, torch::kDouble);
      Tensor vector = torch::zeros({33}, torch::kDouble);
      for (int rank = 0; rank < kRanks; ++rank) {
        wide.push_back(wide_gradient(rank, step));
        small += small_gradient(rank, step);
        vector += vector_gradient(rank, step);
      }
      const Tensor expected = plain.sum(wide);
      EXPECT_LE(
          (weights.wide.grad() - expected).norm().item<double>(),
          1e-4 * expected.norm().item<double>())
          << step;
      // These are sent uncompressed.
      EXPECT_TRUE(torch::allclose(
          weights.small.grad().to(torch::kDouble), small, 1e-5, 1e-6));
      EXPECT_TRUE(torch::allclose(
          weights.vector.grad().to(torch::kDouble), vector, 1e-5, 1e-6));
    }
  });
}

TEST(PowerSgdHook, ASumOfLowRankIsExact) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    auto w = torch::zeros({40, 60}).requires_grad_();
    BucketedGradSync sync(
        {{"w", w}}, world, with_hook(powersgd_hook({.rank = 4})));
    for (int step = 0; step < 3; ++step) {
      // The sum has rank 2; a zero gradient in between must not keep it at
      // zero.
      Tensor sum = torch::zeros({40, 60});
      Tensor own;
      for (int rank = 0; rank < 2; ++rank) {
        const auto part = pseudo_random({40, 1}, 1 + rank + step)
                              .mm(pseudo_random({1, 60}, 5 + rank)) *
                          (step == 1 ? 0 : 1);
        sum += part;
        if (rank == world->rank())
          own = part;
      }
      sync.reset();
      (w * own).sum().backward();
      EXPECT_LE(
          (w.grad() - sum).norm().item<double>(),
          1e-4 * sum.norm().item<double>() + 1e-4)
          << step;
    }
  });
}

TEST(PowerSgdHook, SendsTheFactorsAlone) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    Weights weights;
    BucketedGradSync sync(
        weights.named(), world, with_hook(powersgd_hook({.rank = 2})));
    world->clear_records();
    weights.backward(world->rank(), 0);
    int64_t bytes = 0;
    for (const auto& record : world->records())
      bytes += record.bytes;
    EXPECT_EQ(bytes, 4 * (2 * (40 + 60) + 15 + 33));
  });
}

TEST(PowerSgdHook, ExactStepsAreExactAndABadGradientIsSeenOnce) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    auto w = torch::zeros({40, 60}).requires_grad_();
    BucketedGradSync sync(
        {{"w", w}},
        world,
        with_hook(powersgd_hook({.rank = 1, .exact_steps = 1})));
    const auto sum = wide_gradient(0, 0) + wide_gradient(1, 0);
    const auto error = [&] {
      sync.reset();
      (w * wide_gradient(world->rank(), 0)).sum().backward();
      return (w.grad() - sum).norm().item<double>() / sum.norm().item<double>();
    };
    EXPECT_LE(error(), 1e-6);
    EXPECT_GT(error(), 1e-2);
    sync.reset();
    (w * std::numeric_limits<float>::infinity()).sum().backward();
    EXPECT_FALSE(w.grad().isfinite().any().item<bool>());
    error();
    EXPECT_TRUE(w.grad().isfinite().all().item<bool>());
  });
}

struct CompressedCase {
  const char* name;
  BucketHook (*make)();
};

class CompressedHookTest : public ::testing::TestWithParam<CompressedCase> {};

// The reduced gradients of all steps of a model in several buckets.
std::vector<Tensor> summed_gradients(
    const CommunicatorPtr& world,
    const BucketHook& hook,
    int steps) {
  Weights weights;
  GradSyncOptions options = with_hook(hook);
  options.bucket_capacity_bytes = options.first_bucket_bytes = 64;
  BucketedGradSync sync(weights.named(), world, options);
  std::vector<Tensor> sums;
  for (int step = 0; step < steps; ++step) {
    weights.backward(world->rank(), step);
    for (const Param& param : weights.named())
      sums.push_back(param.tensor.grad().clone());
  }
  return sums;
}

TEST_P(CompressedHookTest, OneServesRanksThatAreThreads) {
  constexpr int kSteps = 20;
  const BucketHook shared = GetParam().make();
  run_ranks(4, [&](const CommunicatorPtr& world) {
    const auto expected = summed_gradients(world, GetParam().make(), kSteps);
    const auto sums = summed_gradients(world, shared, kSteps);
    for (size_t i = 0; i < sums.size(); ++i)
      EXPECT_TRUE(torch::equal(sums[i], expected[i])) << i;
  });
}

// The given-up step never launches its second collectives.
TEST_P(CompressedHookTest, OneOutlivesAStepThatWasGivenUpAndItsGroup) {
  std::vector<BucketHook> hooks = {GetParam().make(), GetParam().make()};
  const auto hook_of = [&](const CommunicatorPtr& world) {
    return hooks[static_cast<size_t>(world->rank())];
  };
  run_ranks(2, [&](const CommunicatorPtr& world) {
    Weights weights;
    GradSyncOptions options = with_hook(hook_of(world));
    options.finish = FinishMode::kExplicit;
    BucketedGradSync sync(weights.named(), world, options);
    weights.backward(world->rank(), 0);
    world->barrier();
  });
  run_ranks(2, [&](const CommunicatorPtr& world) {
    const auto expected = summed_gradients(world, GetParam().make(), 2);
    const auto sums = summed_gradients(world, hook_of(world), 2);
    for (size_t i = 0; i < sums.size(); ++i)
      EXPECT_TRUE(torch::equal(sums[i], expected[i])) << i;
  });
}

INSTANTIATE_TEST_SUITE_P(
    Hooks,
    CompressedHookTest,
    ::testing::Values(
        CompressedCase{"Int8", [] { return int8_hook(); }},
        CompressedCase{"PowerSgd", [] { return powersgd_hook({.rank = 2}); }}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(PowerSgdHook, WrongOptionsAreNamed) {
  for (const int rank : {0, -1}) {
    EXPECT_THAT(
        [&] { powersgd_hook({.rank = rank}); },
        ThrowsMessage<UsageError>(
            HasSubstr("powersgd_hook() with rank = " + std::to_string(rank))));
  }
  EXPECT_THAT(
      [] { powersgd_hook({.rank = 2, .exact_steps = -1}); },
      ThrowsMessage<UsageError>(HasSubstr("exact_steps = -1")));
}

TEST(CompressedHooks, RefuseShardedGradients) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    for (const auto& [hook, name] :
         {std::pair(int8_hook(), "int8_hook()"),
          std::pair(powersgd_hook(), "powersgd_hook()")}) {
      auto w = torch::zeros({64}).requires_grad_();
      GradSyncOptions options = with_hook(hook);
      options.handover = GradHandover::kMainGrad;
      options.sharding = Sharding::kOptimizer;
      BucketedGradSync sync({{"w", w}}, world, options);
      EXPECT_THAT(
          [&] { w.sum().backward(); },
          ThrowsMessage<UsageError>(
              AllOf(HasSubstr(name), HasSubstr("Sharding::kNone"))));
    }
  });
}

TEST(CompressedHooks, LeaveAGroupOfOneAndFloat64Exact) {
  for (const BucketHook& hook : {int8_hook(), powersgd_hook()}) {
    auto w = torch::zeros({40, 60}).requires_grad_();
    BucketedGradSync sync({{"w", w}}, make_world_of_one(), with_hook(hook));
    (w * wide_gradient(0, 0)).sum().backward();
    EXPECT_TRUE(torch::equal(w.grad(), wide_gradient(0, 0)));
  }
  run_ranks(2, [](const CommunicatorPtr& world) {
    for (const BucketHook& hook : {int8_hook(), powersgd_hook()}) {
      auto w = torch::zeros({40, 60}, torch::kDouble).requires_grad_();
      BucketedGradSync sync({{"w", w}}, world, with_hook(hook));
      (w * 0.1).sum().backward();
      EXPECT_EQ(w.grad()[0][0].item<double>(), 0.2);
    }
  });
}

}  // namespace
}  // namespace brigade

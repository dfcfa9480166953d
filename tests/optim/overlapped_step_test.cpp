// Muon's matrices are exchanged during backward and the next forward, with the
// same result.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "brigade/comm/backend.h"
#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/optim/muon.h"
#include "brigade/optim/param_stepper.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::make_world_of_one;
using testing::run_ranks_with_store;
using torch::Tensor;

constexpr int kMatrices = 8;

// Matrices and a vector, each in a bucket of its own.
std::vector<Param> matrices_and_a_vector() {
  std::vector<Param> params;
  for (int i = 0; i <= kMatrices; ++i) {
    Param param;
    param.name = "p" + std::to_string(i);
    const std::vector<int64_t> shape =
        i == 0 ? std::vector<int64_t>{3} : std::vector<int64_t>{2 + i, 5};
    const auto numel = i == 0 ? 3 : shape[0] * shape[1];
    param.tensor = torch::cos(torch::arange(numel, torch::kFloat) + i)
                       .view(shape)
                       .clone()
                       .requires_grad_();
    param.has_own_bucket = true;
    params.push_back(std::move(param));
  }
  return params;
}

// One rank's model with its set; gradients are equal on all ranks.
struct Rank {
  Rank(CommunicatorPtr world, const CommunicatorPtr& owners, Sharding sharding)
      : params(matrices_and_a_vector()) {
    GradSyncOptions options;
    options.handover = GradHandover::kMainGrad;
    options.finish = FinishMode::kExplicit;
    options.sharding = sharding;
    options.gather = GatherMode::kOverlapForward;
    auto sync = std::make_unique<BucketedGradSync>(params, world, options);
    const std::span<const Param> trained = sync->params();
    stepper = std::make_unique<ParamStepper>(
        std::move(sync),
        [](const Param& param) {
          return StepRule{
              .weight_decay = 0.1,
              .unit = param.tensor.dim() == 2 ? StepUnit::kMatrices
                                              : StepUnit::kElements};
        },
        [trained, owners](std::vector<OptimizerGroup> groups) {
          return std::make_unique<Muon>(
              std::move(groups),
              trained,
              [&](const Param&) { return owners; },
              Muon::Options{
                  .muon = {.newton_schulz = {.dtype = MuonDtype::kFloat32}},
                  .adamw = {},
                  .round_numel = 1});
        });
  }

  void backward(int number) {
    GradSync& sync = stepper->sync();
    sync.weights().use(0);
    Tensor loss = torch::zeros({});
    for (const Param& param : params) {
      const auto i = torch::arange(param.tensor.numel(), torch::kFloat);
      const auto gradient = torch::sin(0.7 * i * i + number);
      loss = loss + (gradient.view(param.tensor.sizes()) * param.tensor).sum();
    }
    loss.backward();
  }

  void step(double scale) {
    stepper->finish();
    stepper->step(0.02, stepper->sync().grad_scale() * scale);
  }

  std::map<std::string, Tensor> weights() {
    std::map<std::string, Tensor> result;
    stepper->sync().param_set().visit(
        [&](const Param& param) { result[param.name] = param.tensor.clone(); });
    return result;
  }

  std::vector<Param> params;
  std::unique_ptr<ParamStepper> stepper;
};

// Includes clipped and skipped steps, and steps like the one before.
constexpr std::array kScales = {1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.0, 0.5, 1.0};
// The steps whose scale was predictable.
constexpr std::array kAreAhead =
    {false, false, true, true, false, true, true, true, true};

// A backward is given up before this step.
constexpr size_t kGivenUp = 5;

class OverlappedStep : public ::testing::TestWithParam<Sharding> {};

TEST_P(OverlappedStep, GivesTheBitsOfOneRank) {
  const auto train = [](Rank& rank, Communicator* owners) {
    for (size_t number = 0; number < kScales.size(); ++number) {
      if (number == kGivenUp) {
        rank.backward(99);
        rank.stepper->sync().reset();
        rank.stepper->sync().zero_main_grads();
      }
      const int64_t before = owners ? owners->launches() : 0;
      rank.backward(static_cast<int>(number));
      // With divided gradients backward waits for each bucket, two later. So it
      // does where collectives are checked. Then the number of launches by now
      // does not depend on timing.
      const Sharding sharding = rank.stepper->sync().options().sharding;
      const bool is_counted = owners && (divides_gradients(sharding) ||
                                         (sharding == Sharding::kOptimizer &&
                                          owners->options().check_collectives));
      if (is_counted && kAreAhead[number]) {
        EXPECT_GT(owners->launches(), before) << number;
      } else if (
          owners && (sharding == Sharding::kNone || !kAreAhead[number])) {
        EXPECT_EQ(owners->launches(), before) << number;
      }
      if (kScales[number] > 0) {
        rank.step(kScales[number]);
      } else {
        rank.stepper->finish();
        rank.stepper->skip_step();
      }
    }
  };
  Rank alone(make_world_of_one(), make_world_of_one(), Sharding::kNone);
  train(alone, nullptr);
  const auto expected = alone.weights();
  for (const auto& [size, is_checked] :
       {std::pair(2, false), std::pair(4, false), std::pair(2, true)}) {
    run_ranks_with_store(
        size,
        [&, size = size, check = is_checked](int rank, const StorePtr& store) {
          const auto connect = [&](const char* name) {
            return make_communicator(
                store->with_prefix(name),
                rank,
                size,
                {.name = name, .check_collectives = check},
                {});
          };
          const CommunicatorPtr owners = connect("owners");
          Rank one(connect("world"), owners, GetParam());
          train(one, owners.get());
          const auto weights = one.weights();
          ASSERT_EQ(weights.size(), expected.size());
          for (const auto& [name, weight] : weights)
            EXPECT_TRUE(torch::equal(weight, expected.at(name))) << name;
        });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shardings,
    OverlappedStep,
    ::testing::Values(
        Sharding::kNone,
        Sharding::kOptimizer,
        Sharding::kGradients,
        Sharding::kParameters));

TEST(OverlappedMuon, LeavesTheLastMatricesToTheNextForward) {
  run_ranks_with_store(2, [](int rank, const StorePtr& store) {
    const auto connect = [&](const char* name) {
      return make_communicator(
          store->with_prefix(name), rank, 2, {.name = name}, {});
    };
    Rank one(connect("world"), connect("owners"), Sharding::kNone);
    const auto weight = [&](int param) {
      return one.params[static_cast<size_t>(param)].tensor.detach().clone();
    };
    one.backward(0);
    const Tensor first = weight(1);
    const Tensor last = weight(kMatrices);
    one.step(1);
    GradSync& sync = one.stepper->sync();
    EXPECT_TRUE(sync.weights().are_under_way());
    EXPECT_FALSE(torch::equal(weight(1), first));
    EXPECT_TRUE(torch::equal(weight(kMatrices), last));
    sync.weights().need(sync.params()[1]);
    EXPECT_TRUE(torch::equal(weight(kMatrices), last));
    sync.weights().need(sync.params()[kMatrices]);
    EXPECT_FALSE(torch::equal(weight(kMatrices), last));
    EXPECT_FALSE(sync.weights().are_under_way());
  });
}

}  // namespace
}  // namespace brigade

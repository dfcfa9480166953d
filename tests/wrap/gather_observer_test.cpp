// Weights that are gathered while forward runs. The oracle of values is the
// same training with whole weights; that of waits a communicator that gathers
// only what is waited for.
#include "brigade/wrap/gather_observer.h"

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/rms_norm.h"
#include "brigade/wrap/data_parallel.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/ranks_as_threads.h"
#include "tests/wrap/late_gathers.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LateGathers;
using testing::run_ranks;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

constexpr int64_t kWidth = 24;

// x * scale, computed through pointers: no observer of operations sees it.
struct RawScale : torch::autograd::Function<RawScale> {
  static torch::Tensor forward(
      torch::autograd::AutogradContext* context,
      const torch::Tensor& x,
      const torch::Tensor& scale) {
    torch::Tensor y = torch::empty_like(x);
    for (int64_t i = 0; i < x.numel(); ++i)
      y.data_ptr<float>()[i] =
          x.data_ptr<float>()[i] * scale.data_ptr<float>()[i % scale.numel()];
    context->save_for_backward({x, scale});
    return y;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0] * saved[1], (gradients[0] * saved[0]).sum(0)};
  }
};

// One layer of each kind of reader, each in a bucket of its own.
struct ReadersNet : torch::nn::Module {
  ReadersNet() {
    first = register_module("first", torch::nn::Linear(kWidth, kWidth));
    ours = register_parameter("ours", torch::empty({kWidth, kWidth}));
    norm = register_parameter("norm", torch::empty({kWidth}));
    raw = register_parameter("raw", torch::empty({kWidth}));
    last = register_module("last", torch::nn::Linear(kWidth, kWidth));
    const torch::NoGradGuard no_grad;
    int64_t seed = 0;
    for (auto& param : parameters())
      param.copy_(pseudo_random(param.sizes(), ++seed) * 0.3);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::tanh(first(x));
    after("first");
    // A view that shares its memory.
    x = torch::tanh(ops::linear(x, ours.view({kWidth, kWidth})));
    after("ours");
    x = RawScale::apply(ops::rms_norm(x, norm, 1e-5), raw);
    after("norm and raw");
    return uses_last ? last(x) : x;
  }
  void after(const std::string& layer) const {
    if (on_layer)
      on_layer(layer);
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::Tensor ours, norm, raw;
  std::function<void(const std::string& layer)> on_layer;
  bool uses_last = true;
};

using Model = DataParallel<std::shared_ptr<ReadersNet>>;

GradSyncOptions options_of(Sharding sharding) {
  GradSyncOptions options;
  // A bucket for each layer.
  options.bucket_capacity_bytes = 64;
  options.first_bucket_bytes = 64;
  options.last_bucket_bytes = 64;
  options.handover = GradHandover::kMainGrad;
  options.sharding = sharding;
  options.gather = GatherMode::kOverlapForward;
  // kGradients does not know it.
  if (sharding != Sharding::kGradients)
    options.missing_gradient = MissingGradient::kZero;
  return options;
}

void train_step(Model& model, AdamW& optimizer, int64_t step, int rank) {
  model.forward(pseudo_random({4, kWidth}, 10 * step + rank))
      .pow(2)
      .mean()
      .backward();
  model.finish();
  optimizer.step(0.05, model.sync().grad_scale(), ops::AfterRead::kZero);
  model.gather_weights();
}

// The names of the parameters whose gathers were waited for since forget().
std::set<std::string> waited_for(const LateGathers& gathers, GradSync& sync) {
  std::set<std::string> names;
  for (const torch::Tensor& output : gathers.waited()) {
    const auto* begin = static_cast<const char*>(output.data_ptr());
    for (const Param& param : sync.params()) {
      const auto* at = static_cast<const char*>(param.tensor.data_ptr());
      if (at >= begin && at < begin + output.nbytes())
        names.insert(param.name);
    }
  }
  return names;
}

// A model after its first step, whose weights are still being gathered.
struct AfterOneStep {
  AfterOneStep(const CommunicatorPtr& world, Sharding sharding)
      : gathers(std::make_shared<LateGathers>(world)),
        model(net, gathers, options_of(sharding)),
        optimizer(make_adamw(model.sync(), 0.1)) {
    train_step(model, optimizer, 0, world->rank());
    gathers->forget();
  }
  std::set<std::string> waited() {
    auto names = waited_for(*gathers, model.sync());
    gathers->forget();
    return names;
  }

  std::shared_ptr<LateGathers> gathers;
  std::shared_ptr<ReadersNet> net = std::make_shared<ReadersNet>();
  Model model;
  AdamW optimizer;
};

class GatherObserverTest : public ::testing::TestWithParam<Sharding> {};

TEST_P(GatherObserverTest, AnOperationWaitsForItsOwnWeightsAlone) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    AfterOneStep run(world, GetParam());
    std::vector<std::set<std::string>> waited;
    run.net->on_layer = [&](const std::string&) {
      waited.push_back(run.waited());
    };
    train_step(run.model, run.optimizer, 1, world->rank());
    // "raw" is in nobody's operation: it was waited for before all others.
    EXPECT_THAT(
        waited,
        ElementsAre(
            UnorderedElementsAre("raw", "first.weight", "first.bias"),
            UnorderedElementsAre("ours"),
            UnorderedElementsAre("norm")));
  });
}

TEST_P(GatherObserverTest, AnotherStorageOverAWeightIsTheWeight) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    AfterOneStep run(world, GetParam());
    torch::Tensor& weight = run.net->ours;
    const torch::Tensor over =
        torch::from_blob(weight.data_ptr(), weight.sizes().vec());
    bool is_first = true;
    run.net->on_layer = [&](const std::string&) {
      if (!std::exchange(is_first, false))
        return;
      run.waited();
      const torch::NoGradGuard no_grad;
      over.sum();
      EXPECT_THAT(run.waited(), UnorderedElementsAre("ours"));
    };
    run.model.forward(torch::ones({1, kWidth}));
    EXPECT_FALSE(is_first);
  });
}

TEST_P(GatherObserverTest, TrainsAsWithWholeWeights) {
  const auto train = [](const CommunicatorPtr& world, Sharding sharding) {
    const auto net = std::make_shared<ReadersNet>();
    Model model(
        net, std::make_shared<LateGathers>(world), options_of(sharding));
    AdamW optimizer = make_adamw(model.sync(), 0.1);
    for (int64_t step = 0; step < 4; ++step) {
      net->uses_last = step != 2 || GetParam() == Sharding::kGradients;
      train_step(model, optimizer, step, world->rank());
    }
    std::vector<torch::Tensor> values;
    const FullWeights whole(model.sync());
    for (const auto& param : net->parameters())
      values.push_back(param.detach().clone());
    return values;
  };
  run_ranks(2, [&](const CommunicatorPtr& world) {
    const auto whole = train(world, Sharding::kNone);
    const auto divided = train(world, GetParam());
    for (size_t i = 0; i < whole.size(); ++i)
      EXPECT_LT((whole[i] - divided[i]).abs().max().item<double>(), 1e-6) << i;
  });
}

TEST_P(GatherObserverTest, AfterForwardAllWeightsAreThere) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    AfterOneStep run(world, GetParam());
    run.net->uses_last = false;
    run.model.forward(torch::ones({1, kWidth}));
    EXPECT_EQ(run.waited().size(), 7);
    EXPECT_FALSE(run.model.sync().weights().are_under_way());
  });
}

TEST_P(GatherObserverTest, ForwardWaitsForAllWeightsWhereNobodyObserves) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    AfterOneStep run(world, GetParam());
    const at::DisableRecordFunctionGuard unobserved;
    bool is_first = true;
    run.net->on_layer = [&](const std::string&) {
      if (std::exchange(is_first, false)) {
        EXPECT_FALSE(run.model.sync().weights().are_under_way());
      }
    };
    run.model.forward(torch::ones({1, kWidth}));
    EXPECT_FALSE(is_first);
  });
}

TEST_P(GatherObserverTest, AFailedGatherIsForwardsError) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    AfterOneStep run(world, GetParam());
    run.net->on_layer = [&](const std::string& layer) {
      if (layer == "first")
        run.gathers->fail_next();
    };
    EXPECT_THAT(
        [&] {
          run.model.forward(torch::ones({1, kWidth}));
        },
        ThrowsMessage<CommError>(HasSubstr("a gather that fails")));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Stage,
    GatherObserverTest,
    ::testing::Values(Sharding::kOptimizer, Sharding::kGradients),
    [](const auto& stage) { return std::string(to_string(stage.param)); });

}  // namespace
}  // namespace brigade

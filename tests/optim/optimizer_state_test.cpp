// An optimizer's state moves between any numbers of ranks and shardings.
#include "brigade/optim/optimizer_state.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim.h>
#include <torch/serialize.h>

#include <sstream>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/wrap/data_parallel.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::run_ranks;

// Sizes that no number of ranks divides.
struct SavedNet : torch::nn::Module {
  SavedNet() { fill_params(*this); }
  torch::Tensor forward(const torch::Tensor& x) {
    return second(torch::tanh(middle(torch::tanh(first(x)))));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(7, 13));
  torch::nn::Linear middle =
      register_module("middle", torch::nn::Linear(13, 5));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(5, 3));
};
using SavedModule = std::shared_ptr<SavedNet>;

enum class SavedKind {
  kAdam,
  kMomentum,
  kRmsprop,
  kAdagrad,
  kBrigadeAdamW,
  kBf16,  // Brigade's AdamW
};

bool is_brigades(SavedKind kind) {
  return kind == SavedKind::kBrigadeAdamW || kind == SavedKind::kBf16;
}

std::unique_ptr<torch::optim::Optimizer> make_saved_optimizer(
    SavedKind kind,
    const std::vector<torch::Tensor>& params) {
  namespace optim = torch::optim;
  switch (kind) {
    case SavedKind::kAdam:
      return std::make_unique<optim::Adam>(
          params, optim::AdamOptions(0.02).amsgrad(true));
    case SavedKind::kMomentum:
      return std::make_unique<optim::SGD>(
          params, optim::SGDOptions(0.02).momentum(0.9));
    case SavedKind::kRmsprop:
      return std::make_unique<optim::RMSprop>(
          params, optim::RMSpropOptions(0.02).centered(true).momentum(0.5));
    case SavedKind::kAdagrad:
      return std::make_unique<optim::Adagrad>(
          params, optim::AdagradOptions(0.02).lr_decay(0.1));
    default:
      return nullptr;
  }
}

// How a run is divided. Numbers of ranks are powers of two and all ranks have
// the same batch, so that the mean gradient has the bits of one rank's.
struct SavedLayout {
  int ranks = 1;
  GradHandover handover = GradHandover::kMainGrad;
  Sharding sharding = Sharding::kNone;
  int64_t bucket_bytes = 256;
};

std::string name_of(const SavedLayout& layout) {
  return std::to_string(layout.ranks) + " ranks, " +
         to_string(layout.sharding) +
         (layout.handover == GradHandover::kParamDtype ? ", param_dtype" : "");
}

// The files of a run.
struct SavedFiles {
  std::string weights;
  std::string state;
};

// One rank of a run.
class SavedRun {
 public:
  SavedRun(
      SavedKind kind,
      const SavedLayout& layout,
      const CommunicatorPtr& world,
      const SavedFiles* from)
      : kind_(kind),
        net_(make_net(kind, from)),
        model_(net_, world, options_of(layout)) {
    if (is_brigades(kind))
      adamw_.emplace(make_adamw(model_.sync(), 0.1));
    else
      optimizer_ = make_saved_optimizer(
          kind,
          layout.handover == GradHandover::kMainGrad
              ? owned_parameters(model_.sync())
              : net_->parameters());
    if (from == nullptr)
      return;
    OptimizerState state;
    std::stringstream file(from->state);
    torch::load(state, file);
    if (adamw_)
      load_optimizer_state(model_.sync(), *adamw_, state);
    else
      load_optimizer_state(model_.sync(), *optimizer_, state);
  }

  void train(int64_t first_step, int64_t steps) {
    for (int64_t step = first_step; step < first_step + steps; ++step) {
      const auto x = pseudo_random({4, 7}, step);
      const auto dtype = net_->first->weight.scalar_type();
      model_.forward(x.to(dtype)).pow(2).mean().backward();
      if (adamw_) {
        adamw_->step(0.02, model_.sync().grad_scale(), ops::AfterRead::kZero);
        model_.gather_weights();
      } else if (model_.sync().options().handover == GradHandover::kMainGrad) {
        model_.step(*optimizer_);
      } else {
        optimizer_->step();
      }
    }
  }

  // The files on rank 0, empty ones on the others.
  SavedFiles save() {
    const OptimizerState state = this->state();
    const FullWeights whole(model_.sync());
    if (model_.sync().all_ranks()->rank() != 0) {
      EXPECT_TRUE(state.of_param.empty());
      return {};
    }
    std::stringstream weights;
    torch::save(net_, weights);
    std::stringstream file;
    torch::save(state, file);
    return {weights.str(), file.str()};
  }

  OptimizerState state() {
    return adamw_ ? gather_optimizer_state(model_.sync(), *adamw_)
                  : gather_optimizer_state(model_.sync(), *optimizer_);
  }

  std::vector<torch::Tensor> values() {
    const FullWeights whole(model_.sync());
    std::vector<torch::Tensor> values;
    for (const auto& param : net_->parameters())
      values.push_back(param.detach().clone());
    return values;
  }

 private:
  static SavedModule make_net(SavedKind kind, const SavedFiles* from) {
    auto net = std::make_shared<SavedNet>();
    if (kind == SavedKind::kBf16)
      net->to(torch::kBFloat16);
    if (from != nullptr) {
      std::stringstream file(from->weights);
      torch::load(net, file);
    }
    return net;
  }

  static GradSyncOptions options_of(const SavedLayout& layout) {
    GradSyncOptions options;
    options.bucket_capacity_bytes = layout.bucket_bytes;
    options.first_bucket_bytes = layout.bucket_bytes;
    options.handover = layout.handover;
    options.sharding = layout.sharding;
    return options;
  }

  SavedKind kind_;
  SavedModule net_;
  DataParallel<SavedModule> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<AdamW> adamw_;
};

std::vector<SavedLayout> saved_layouts(SavedKind kind) {
  std::vector<SavedLayout> layouts = {
      {.ranks = 1, .bucket_bytes = 1 << 20},
      {.ranks = 2, .sharding = Sharding::kOptimizer},
      {.ranks = 4, .sharding = Sharding::kGradients, .bucket_bytes = 64},
      {.ranks = 2, .sharding = Sharding::kParameters}};
  if (!is_brigades(kind))
    layouts.push_back({.ranks = 2, .handover = GradHandover::kParamDtype});
  return layouts;
}

void expect_same_bits(const OptimizerState& a, const OptimizerState& b) {
  ASSERT_EQ(a.of_param.size(), b.of_param.size());
  for (const auto& [name, fields] : a.of_param) {
    const auto& others = b.of_param.at(name);
    ASSERT_EQ(fields.size(), others.size()) << name;
    for (const auto& [field, tensor] : fields)
      EXPECT_TRUE(torch::equal(tensor, others.at(field)))
          << field << " of " << name;
  }
}

class OptimizerStateTest : public ::testing::TestWithParam<SavedKind> {};

TEST_P(OptimizerStateTest, ContinuesBitForBitUnderAnyOtherLayout) {
  constexpr int64_t kBefore = 3;
  constexpr int64_t kAfter = 2;
  const auto layouts = saved_layouts(GetParam());
  for (size_t i = 0; i < layouts.size(); ++i) {
    const SavedLayout& from = layouts[i];
    SavedFiles files;
    OptimizerState saved;
    std::vector<torch::Tensor> undisturbed;
    run_ranks(from.ranks, [&](const CommunicatorPtr& world) {
      SavedRun run(GetParam(), from, world, nullptr);
      run.train(0, kBefore);
      const SavedFiles mine = run.save();
      const OptimizerState state = run.state();
      run.train(kBefore, kAfter);
      const auto values = run.values();
      if (world->rank() == 0) {
        files = mine;
        saved = state;
        undisturbed = values;
      }
    });
    ASSERT_EQ(saved.of_param.size(), 6U);
    for (size_t j = 0; j < layouts.size(); ++j) {
      // All pairs for one kind; for the others each to the next.
      if (GetParam() != SavedKind::kAdam && j != (i + 1) % layouts.size())
        continue;
      const SavedLayout& to = layouts[j];
      SCOPED_TRACE(name_of(from) + " -> " + name_of(to));
      run_ranks(to.ranks, [&](const CommunicatorPtr& world) {
        SavedRun run(GetParam(), to, world, &files);
        const OptimizerState loaded = run.state();
        run.train(kBefore, kAfter);
        const auto values = run.values();
        if (world->rank() != 0)
          return;
        expect_same_bits(loaded, saved);
        for (size_t v = 0; v < values.size(); ++v)
          EXPECT_TRUE(torch::equal(values[v], undisturbed[v])) << v;
      });
    }
  }
}

// Three ranks, which is no power of two: compares the state only.
TEST_P(OptimizerStateTest, ThreeRanksRestoreTheStateOfTheirFile) {
  const SavedLayout layout{.ranks = 3, .sharding = Sharding::kOptimizer};
  SavedFiles files;
  OptimizerState saved;
  for (const bool is_saving : {true, false}) {
    run_ranks(3, [&](const CommunicatorPtr& world) {
      SavedRun run(GetParam(), layout, world, is_saving ? nullptr : &files);
      if (is_saving)
        run.train(0, 2);
      const SavedFiles mine = run.save();
      const OptimizerState state = run.state();
      if (world->rank() != 0)
        return;
      if (is_saving) {
        files = mine;
        saved = state;
      } else {
        expect_same_bits(state, saved);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    OptimizerStateTest,
    ::testing::Values(
        SavedKind::kAdam,
        SavedKind::kMomentum,
        SavedKind::kRmsprop,
        SavedKind::kAdagrad,
        SavedKind::kBrigadeAdamW,
        SavedKind::kBf16));

// A weight may have any strides.
TEST(OptimizerState, LoadsTheStateOfATransposedWeight) {
  const torch::nn::Linear linear(5, 3);
  linear->weight.set_data(pseudo_random({5, 3}, 1).t());
  DataParallel<torch::nn::Linear> model(linear, testing::make_world_of_one());
  torch::optim::Adam adam(linear->parameters(), 0.02);
  model.forward(pseudo_random({4, 5}, 2)).pow(2).mean().backward();
  adam.step();
  const OptimizerState state = gather_optimizer_state(model.sync(), adam);
  torch::optim::Adam other(linear->parameters(), 0.02);
  load_optimizer_state(model.sync(), other, state);
  expect_same_bits(gather_optimizer_state(model.sync(), other), state);
}

// Only the first of two ranks holds elements of the parameter that was stepped
// more often than its neighbours.
TEST(OptimizerState, AllRanksRefuseAStateThatOneRankRefuses) {
  run_ranks(2, [&](const CommunicatorPtr& world) {
    GradSyncOptions options;
    options.handover = GradHandover::kMainGrad;
    options.sharding = Sharding::kOptimizer;
    DataParallel<SavedModule> model(
        std::make_shared<SavedNet>(), world, options);
    torch::optim::Adam adam(owned_parameters(model.sync()), 0.02);
    model.forward(pseudo_random({4, 7}, 1)).pow(2).mean().backward();
    model.step(adam);
    OptimizerState state;
    for (int rank = 0; rank < world->size(); ++rank) {
      OptimizerState gathered =
          gather_optimizer_state(model.sync(), adam, rank);
      if (rank == world->rank())
        state = std::move(gathered);
    }
    state.of_param.at("second.bias")["step"] = torch::tensor(int64_t{7});
    EXPECT_THROW(load_optimizer_state(model.sync(), adam, state), DataError);
  });
}

// The state that torch::optim has after the same steps.
TEST(OptimizerState, IsThatOfPlainTorch) {
  SavedNet plain;
  torch::optim::Adam adam(plain.parameters(), torch::optim::AdamOptions(0.02));
  for (int64_t step = 0; step < 3; ++step) {
    adam.zero_grad();
    plain.forward(pseudo_random({4, 7}, step)).pow(2).mean().backward();
    adam.step();
  }
  run_ranks(2, [&](const CommunicatorPtr& world) {
    const auto net = std::make_shared<SavedNet>();
    GradSyncOptions options;
    options.bucket_capacity_bytes = 256;
    options.handover = GradHandover::kMainGrad;
    options.sharding = Sharding::kGradients;
    DataParallel<SavedModule> model(net, world, options);
    torch::optim::Adam mine(owned_parameters(model.sync()), 0.02);
    for (int64_t step = 0; step < 3; ++step) {
      model.forward(pseudo_random({4, 7}, step)).pow(2).mean().backward();
      model.step(mine);
    }
    const OptimizerState state =
        gather_optimizer_state(model.sync(), mine, /*to=*/1);
    if (world->rank() != 1)
      return;
    for (const auto& param : plain.named_parameters()) {
      std::ostringstream address;
      address << param.value().unsafeGetTensorImpl();
      const auto& fields = state.of_param.at(param.key());
      EXPECT_EQ(fields.size(), 3U);
      EXPECT_EQ(fields.at("step").item<int64_t>(), 3);
      for (const auto& [key, kept] : adam.state()) {
        std::ostringstream text;
        text << key;
        if (text.str() != address.str())
          continue;
        const auto& expected =
            static_cast<const torch::optim::AdamParamState&>(*kept);
        EXPECT_TRUE(torch::allclose(
            fields.at("exp_avg"), expected.exp_avg(), 1e-5, 1e-7));
        EXPECT_TRUE(torch::allclose(
            fields.at("exp_avg_sq"), expected.exp_avg_sq(), 1e-5, 1e-9));
      }
    }
  });
}

}  // namespace
}  // namespace brigade

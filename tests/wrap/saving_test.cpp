// torch::save() and torch::load() of a wrapped module and of its optimizer's
// state: a run that is cut in two gives the weights of one process that was
// not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include <sstream>

#include "brigade/base/error.h"
#include "brigade/wrap/data_parallel.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::run_ranks;

// Different initial values on every rank and in every call, so that a load
// that does nothing is seen.
torch::nn::Sequential make_saved_net(double shift, torch::Dtype dtype) {
  torch::nn::Sequential net(
      torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  net->to(dtype);
  const torch::NoGradGuard no_grad;
  int64_t seed = 0;
  for (auto& param : net->parameters())
    param.copy_(pseudo_random(param.sizes(), ++seed) + shift);
  return net;
}

torch::optim::AdamW make_torch_adamw(const torch::nn::Sequential& net) {
  return torch::optim::AdamW(
      net->parameters(), torch::optim::AdamWOptions(0.05).weight_decay(0.1));
}

template <typename Value>
std::string saved(const Value& value) {
  std::ostringstream stream;
  torch::save(value, stream);
  return stream.str();
}

template <typename Value>
void load_into(Value& value, const std::string& text) {
  std::istringstream stream(text);
  torch::load(value, stream);
}

std::vector<torch::Tensor> copies_of(const torch::nn::Sequential& net) {
  std::vector<torch::Tensor> result;
  for (const auto& param : net->parameters())
    result.push_back(param.detach().clone());
  return result;
}

constexpr int kSteps = 4;  // before and after the cut

// One process on the whole batch, never saved.
std::vector<torch::Tensor> uncut_run(
    const torch::Tensor& data,
    torch::Dtype dtype) {
  auto net = make_saved_net(0, dtype);
  auto optimizer = make_torch_adamw(net);
  for (int step = 0; step < 2 * kSteps; ++step) {
    optimizer.zero_grad();
    net->forward(data).pow(2).mean().backward();
    optimizer.step();
  }
  return copies_of(net);
}

// When the second half's module is filled.
enum class Loads { kBeforeWrapping, kAfterWrapping };

class Saving : public ::testing::TestWithParam<
                   std::tuple<GradSyncAlgorithm, torch::Dtype, Loads>> {};

TEST_P(Saving, ARunCutInTwoGivesTheWeightsOfOneProcess) {
  const auto [sync, dtype, loads] = GetParam();
  const auto data = pseudo_random({12, 6}, 50).to(dtype);
  const auto expected = uncut_run(data, dtype);
  const double tolerance = dtype == torch::kDouble ? 1e-12 : 1e-5;
  run_ranks(
      2, [&, sync = sync, dtype = dtype, loads = loads](CommunicatorPtr world) {
        const auto mine = data.chunk(2)[world->rank()];
        const auto train = [&](auto& model, torch::optim::AdamW& optimizer) {
          for (int step = 0; step < kSteps; ++step) {
            model->forward(mine).pow(2).mean().backward();
            optimizer.step();
          }
        };
        std::string weights;
        std::string state;
        {
          DataParallel model(
              make_saved_net(0, dtype), world, {}, {.sync = sync});
          auto optimizer = make_torch_adamw(*model);
          train(model, optimizer);
          weights = saved(*model);
          state = saved(optimizer);
        }
        auto net = make_saved_net(world->rank() + 1, dtype);
        if (loads == Loads::kBeforeWrapping)
          load_into(net, weights);
        DataParallel model(net, world, {}, {.sync = sync});
        auto optimizer = make_torch_adamw(net);
        if (loads == Loads::kAfterWrapping)
          load_into(net, weights);
        load_into(optimizer, state);
        train(model, optimizer);
        const auto result = copies_of(net);
        for (size_t i = 0; i < result.size(); ++i) {
          EXPECT_TRUE(
              torch::allclose(result[i], expected[i], tolerance, tolerance))
              << "parameter " << i << " of rank " << world->rank() << ": "
              << (result[i] - expected[i]).abs().max().item<double>();
        }
      });
}

INSTANTIATE_TEST_SUITE_P(
    Each,
    Saving,
    ::testing::Combine(
        ::testing::Values(
            GradSyncAlgorithm::kBucketed,
            GradSyncAlgorithm::kPerParam),
        ::testing::Values(torch::kFloat, torch::kDouble),
        ::testing::Values(Loads::kBeforeWrapping, Loads::kAfterWrapping)));

// Brigade's AdamW over the flat memory: what is loaded goes into that memory,
// and the masters follow.
TEST(Saving, WeightsLoadedAfterWrappingAreWhatBrigadesAdamWSteps) {
  const auto data = pseudo_random({12, 6}, 50);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    for (const auto sync :
         {GradSyncAlgorithm::kBucketed, GradSyncAlgorithm::kPerParam}) {
      run_ranks(2, [&](CommunicatorPtr world) {
        const auto mine = data.chunk(2)[world->rank()].to(dtype);
        const auto train = [&](const torch::nn::Sequential& net,
                               const std::string& loaded_after_wrapping) {
          GradSyncOptions options;
          options.handover = GradHandover::kMainGrad;
          DataParallel model(net, world, options, {.sync = sync});
          auto optimizer = make_adamw(model.sync(), 0.1);
          // One step, so that bf16 masters hold more than the weights.
          model->forward(mine).pow(2).mean().backward();
          optimizer.step(0.05, model.sync().grad_scale());
          model.sync().zero_main_grads();
          for (size_t i = 0; i < optimizer.groups().size(); ++i) {
            find_state(optimizer.states(i), "exp_avg").zero_();
            find_state(optimizer.states(i), "exp_avg_sq").zero_();
          }
          auto handle = net;
          if (loaded_after_wrapping.empty()) {
            const torch::NoGradGuard no_grad;
            const auto values = make_saved_net(0.25, dtype)->parameters();
            for (size_t i = 0; i < values.size(); ++i)
              net->parameters()[i].copy_(values[i]);
            optimizer.reload_masters();
          } else {
            load_into(handle, loaded_after_wrapping);
          }
          for (int step = 0; step < 3; ++step) {
            model->forward(mine).pow(2).mean().backward();
            optimizer.step(0.05, model.sync().grad_scale());
            model.sync().zero_main_grads();
          }
          return copies_of(net);
        };
        const auto copied = train(make_saved_net(0, dtype), "");
        const auto loaded =
            train(make_saved_net(0, dtype), saved(make_saved_net(0.25, dtype)));
        for (size_t i = 0; i < loaded.size(); ++i)
          EXPECT_TRUE(torch::equal(loaded[i], copied[i])) << i;
      });
    }
  }
}

TEST(Saving, WeightsOfAnotherShapeAreRefusedByName) {
  torch::nn::Linear net(4, 2);
  DataParallel model(net, testing::make_world_of_one());
  load_into(net, saved(torch::nn::Linear(4, 3)));
  EXPECT_THAT(
      [&] {
        model->forward(torch::ones({1, 4})).sum().backward();
      },
      ::testing::ThrowsMessage<UsageError>(::testing::AllOf(
          ::testing::HasSubstr("had shape ["),
          ::testing::HasSubstr("load weights of the same module"))));
}

}  // namespace
}  // namespace brigade

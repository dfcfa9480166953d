// Weights tied by sharing memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "brigade/base/error.h"
#include "brigade/data_parallel/shared_memory.h"
#include "tests/data_parallel/sync_cases.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::SyncCase;
using ::testing::ThrowsMessage;

enum class Tie { kWeights, kFrozen, kBuffer, kIgnored };

struct TiedNet : torch::nn::Module {
  explicit TiedNet(Tie tie, torch::ScalarType dtype) {
    table = register_parameter("table", torch::ones({4, 2}, dtype));
    if (tie == Tie::kBuffer) {
      other = register_buffer("other", table.detach()[1]);
    } else {
      other = register_parameter(
          "other", torch::zeros({4, 2}, dtype), tie != Tie::kFrozen);
      other.set_data(table.data());
    }
  }
  torch::Tensor forward(double x) {
    return (table * x).sum() + (other * x).sum();
  }
  torch::Tensor table, other;
};

class SharedMemory : public ::testing::TestWithParam<SyncCase> {};

TEST_P(SharedMemory, StaysSharedOrIsRefusedByBothNames) {
  for (const Tie tie :
       {Tie::kWeights, Tie::kFrozen, Tie::kBuffer, Tie::kIgnored}) {
    run_ranks(2, [&](const CommunicatorPtr& world) {
      const auto net = std::make_shared<TiedNet>(tie, GetParam().dtype);
      WrapOptions wrap;
      wrap.sync = GetParam().sync;
      if (tie == Tie::kIgnored)
        wrap.ignore = {"other"};
      if (GetParam().is_main_grad()) {
        EXPECT_THAT(
            [&] {
              const DataParallel model(net, world, GetParam().options(), wrap);
            },
            ThrowsMessage<UsageError>(AllOf(
                HasSubstr("parameter 'table'"),
                HasSubstr("shares memory with 'other'"))));
        return;
      }
      DataParallel model(net, world, GetParam().options(), wrap);
      torch::optim::SGD optimizer(net->parameters(), 0.125);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        model.forward(1).backward();
        optimizer.step();
      }
      // If both are trained, each is stepped by its own gradient.
      EXPECT_EQ(
          net->table[1][0].item<double>(),
          tie == Tie::kWeights || tie == Tie::kIgnored ? 0.5 : 0.75);
      EXPECT_TRUE(net->other.is_alias_of(net->table));
      EXPECT_EQ(
          net->other.reshape({-1})[0].item<double>(),
          net->table[1][0].item<double>());
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sync,
    SharedMemory,
    ::testing::ValuesIn(testing::all_sync_cases()),
    [](const auto& each) { return name_of(each.param); });

TEST(SharedMemory, ViewsShareItWhereTheirElementsOverlap) {
  const auto base = torch::zeros({4, 6});
  const auto half = torch::zeros({6});
  EXPECT_THAT(
      names_of_sharers(
          {{"left", base.narrow(1, 0, 3)},
           {"right", base.narrow(1, 3, 3)},
           {"row", base[2]},
           {"alone", torch::zeros({3})},
           {"first", half.narrow(0, 0, 3)},
           {"second", half.narrow(0, 3, 3)},
           {"second again", half.narrow(0, 3, 3)},
           {"undefined", torch::Tensor()}}),
      ElementsAre("row", "row", "left", "", "", "second again", "second", ""));
}

TEST(SharedMemory, RefusesAConversionThatWouldUntieBuffers) {
  struct Net : torch::nn::Module {
    Net() {
      weight = register_parameter("weight", torch::ones({2}));
      mean = register_buffer("mean", torch::ones({2}));
      shown = register_buffer("shown", mean.narrow(0, 1, 1));
    }
    torch::Tensor forward(const torch::Tensor& x) { return weight * x + mean; }
    torch::Tensor weight, mean, shown;
  };
  WrapOptions wrap;
  wrap.mixed_precision = MixedPrecision{.buffer_dtype = torch::kBFloat16};
  EXPECT_THAT(
      [&] {
        const DataParallel model(
            std::make_shared<Net>(), testing::make_world_of_one(), {}, wrap);
      },
      ThrowsMessage<UsageError>(AllOf(
          HasSubstr("buffer 'mean', which shares memory with 'shown'"),
          HasSubstr("name it in keep"))));
}

}  // namespace
}  // namespace brigade

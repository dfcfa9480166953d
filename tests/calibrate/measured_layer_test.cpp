#include "brigade/calibrate/measured_layer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "brigade/comm/self_communicator.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

constexpr machine::LayerSample kSizes = {
    .hidden = 64,
    .heads = 2,
    .intermediate = 96,
    .sequence_tokens = 8,
    .sequences = 2};

void expect_finite(const torch::Tensor& x, int64_t rows) {
  EXPECT_EQ(x.sizes(), (torch::IntArrayRef{rows, kSizes.hidden}));
  EXPECT_TRUE(torch::isfinite(x).all().item<bool>());
}

TEST(MeasuredLayer, RunsOnEveryRankOfTensorParallel) {
  for (TokenLayout tokens : {TokenLayout::kReplicated, TokenLayout::kSharded}) {
    testing::run_ranks(2, [&](const CommunicatorPtr& group) {
      machine::LayerSample sizes = kSizes;
      sizes.tp = group->size();
      sizes.tokens = tokens;
      const int64_t rows = tokens == TokenLayout::kSharded ? 8 : 16;
      const MeasuredLayer layer(sizes, group);
      const auto input = layer.make_stream();
      const auto output = layer.forward(input);
      expect_finite(output.delta, rows);
      expect_finite(output.residual, rows);
      layer.backward(output, input, layer.make_stream());
      const auto again = layer.forward_recomputed(input);
      layer.backward(again, input, layer.make_stream());
      expect_finite(again.delta, rows);
    });
  }
}

TEST(MeasuredLayer, RunsOnEveryRankOfContextParallel) {
  testing::run_ranks(2, [](const CommunicatorPtr& group) {
    machine::LayerSample sizes = kSizes;
    sizes.cp = group->size();
    LayerStack layers(sizes, group, 3);
    layers.forward();
    layers.backward();
    const MeasuredLayer layer(sizes, group);
    expect_finite(layer.forward(layer.make_stream()).delta, 8);
  });
}

TEST(MeasuredLayer, RecomputedIsTheSumOfBothStreams) {
  const MeasuredLayer layer(kSizes, make_self_communicator());
  const auto input = layer.make_stream();
  const auto output = layer.forward(input);
  const auto again = layer.forward_recomputed(input);
  EXPECT_TRUE(torch::equal(again.delta, output.delta + output.residual));
}

}  // namespace
}  // namespace brigade

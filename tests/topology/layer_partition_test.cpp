#include "brigade/topology/layer_partition.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

LayerCosts equal_layers(int layers, double embedding = 0, double head = 0) {
  return {
      .layers = std::vector<double>(static_cast<size_t>(layers), 1.0),
      .embedding = embedding,
      .head = head};
}

std::vector<int> sizes(const std::vector<LayerRange>& partition) {
  std::vector<int> result;
  for (const LayerRange& range : partition)
    result.push_back(range.size());
  return result;
}

std::vector<LayerRange> cut(const LayerCosts& costs, int pp, int v = 1) {
  std::vector<std::string> problems;
  auto partition = partition_layers(
      costs,
      {.pp = pp, .virtual_stages = v, .pp_layers = std::nullopt},
      problems);
  EXPECT_THAT(problems, IsEmpty());
  return partition;
}

TEST(LayerPartition, CutsEqualLayersEvenly) {
  EXPECT_THAT(sizes(cut(equal_layers(8), 4)), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(sizes(cut(equal_layers(4), 1)), ElementsAre(4));
  EXPECT_THAT(sizes(cut(equal_layers(8), 2, 4)).size(), 8);
}

TEST(LayerPartition, PutsTheSpareLayersLateWhereFewActivationsLive) {
  EXPECT_THAT(sizes(cut(equal_layers(6), 4)), ElementsAre(1, 1, 2, 2));
}

TEST(LayerPartition, CountsTheHeadAndTheEmbeddingAsWork) {
  EXPECT_THAT(sizes(cut(equal_layers(8, 0, 2), 2)), ElementsAre(5, 3));
  EXPECT_THAT(sizes(cut(equal_layers(8, 2, 2), 4)), ElementsAre(1, 3, 3, 1));
  // A head that costs nine layers fills a stage.
  EXPECT_THAT(sizes(cut(equal_layers(6, 0, 9), 2)), ElementsAre(6, 0));
}

TEST(LayerPartition, MakesStagesOfTheEmbeddingAndTheHeadAlone) {
  EXPECT_THAT(sizes(cut(equal_layers(2, 1, 1), 4)), ElementsAre(0, 1, 1, 0));
}

// All cuts there are, tried one by one.
double least_maximum(const LayerCosts& costs, int stages) {
  const auto layers = static_cast<int>(costs.layers.size());
  double best = std::numeric_limits<double>::infinity();
  std::function<void(int, int, double)> place =
      [&](int stage, int begin, double maximum) {
        if (stage == stages) {
          if (begin == layers)
            best = std::min(best, maximum);
          return;
        }
        const bool edge = stages > 1 && (stage == 0 || stage == stages - 1);
        double cost = (stage == 0 ? costs.embedding : 0) +
                      (stage == stages - 1 ? costs.head : 0);
        if (edge)
          place(stage + 1, begin, std::max(maximum, cost));
        for (int end = begin; end < layers; ++end) {
          cost += costs.layers[static_cast<size_t>(end)];
          place(stage + 1, end + 1, std::max(maximum, cost));
        }
      };
  place(0, 0, 0);
  return best;
}

TEST(LayerPartition, MinimisesTheCostliestStageAgainstAllCuts) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(0.1, 3.0);
  for (int layers = 1; layers <= 7; ++layers) {
    for (int stages = 1; stages <= std::min(layers + 2, 5); ++stages) {
      LayerCosts costs = equal_layers(layers, uniform(random), uniform(random));
      for (double& cost : costs.layers)
        cost = uniform(random);
      const auto partition = cut(costs, stages);
      ASSERT_EQ(static_cast<int>(partition.size()), stages);
      EXPECT_EQ(partition.front().begin, 0);
      EXPECT_EQ(partition.back().end, layers);
      for (size_t s = 1; s < partition.size(); ++s)
        EXPECT_EQ(partition[s].begin, partition[s - 1].end);
      const auto work = stage_costs(costs, partition);
      EXPECT_NEAR(
          *std::max_element(work.begin(), work.end()),
          least_maximum(costs, stages),
          1e-9)
          << layers << " layers, " << stages << " stages";
    }
  }
}

TEST(LayerPartition, SaysHowManyStagesAModelCanMake) {
  std::vector<std::string> problems;
  EXPECT_THAT(
      partition_layers(
          equal_layers(4),
          {.pp = 4, .virtual_stages = 2, .pp_layers = std::nullopt},
          problems),
      IsEmpty());
  EXPECT_THAT(
      problems,
      ElementsAre("[layer_partition] 8 stages (pp 4 * 2 virtual), but a model "
                  "of 4 layers makes at most 6"));
}

TEST(LayerPartition, FollowsTheUsersList) {
  std::vector<std::string> problems;
  const auto partition = partition_layers(
      equal_layers(5),
      {.pp = 3, .virtual_stages = 1, .pp_layers = std::vector<int>{0, 4, 1}},
      problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_THAT(
      partition,
      ElementsAre(LayerRange{0, 0}, LayerRange{0, 4}, LayerRange{4, 5}));
}

TEST(LayerPartition, RefusesAListThatDoesNotFit) {
  const auto complaint = [](std::vector<int> pp_layers) {
    std::vector<std::string> problems;
    EXPECT_THAT(
        partition_layers(
            equal_layers(5),
            {.pp = 3, .virtual_stages = 1, .pp_layers = std::move(pp_layers)},
            problems),
        IsEmpty());
    return problems;
  };
  EXPECT_THAT(
      complaint({2, 3}),
      ElementsAre(HasSubstr("[2, 3] has 2 entries, but there are 3 stages")));
  EXPECT_THAT(
      complaint({2, 2, 2}),
      ElementsAre(HasSubstr("adds up to 6, but the model has 5 layers")));
  EXPECT_THAT(
      complaint({2, 0, 3}),
      ElementsAre(HasSubstr("gives stage 1 0 layers; it holds 1 to 5")));
  EXPECT_THAT(
      complaint({-1, 3, 3}), ElementsAre(HasSubstr("gives stage 0 -1 layers")));
}

TEST(LayerPartition, EstimatesTheWorkOfALlama) {
  // Llama-2-7B at 4096 tokens. A layer has 202,375,168 weights in products.
  const LayerCosts costs = estimate_layer_costs(
      {.num_layers = 32,
       .hidden_size = 4096,
       .intermediate_size = 11008,
       .attention_width = 4096,
       .key_value_width = 4096,
       .vocab_size = 32000,
       .sequence_tokens = 4096});
  ASSERT_EQ(costs.layers.size(), 32u);
  EXPECT_DOUBLE_EQ(costs.layers[0], 2.0 * 202375168 + 2.0 * 4096 * 4096);
  EXPECT_DOUBLE_EQ(costs.head, 2.0 * 131072000);
  EXPECT_DOUBLE_EQ(costs.embedding, 4096);
}

}  // namespace
}  // namespace brigade

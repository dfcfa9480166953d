#include "brigade/model_spec/rotary_frequencies.h"

#include <gtest/gtest.h>

#include <vector>

namespace brigade {
namespace {

struct Case {
  const char* name;
  RopeScaling scaling;
  int64_t length;
  std::vector<double> frequencies;
  double magnitude;
};

// What transformers 5.23 computes for heads of 16 and theta 500
// (modeling_rope_utils.py), in float32.
const Case kCases[] = {
    {"linear",
     {.type = RopeType::kLinear, .factor = 4},
     0,
     {0.25,
      0.1149658,
      0.05286856,
      0.02431231,
      0.01118034,
      0.005141428,
      0.002364354,
      0.00108728},
     1},
    {"dynamic, within what was trained",
     {.type = RopeType::kDynamic,
      .factor = 4,
      .original_max_position_embeddings = 512},
     512,
     {1.0,
      0.4598633,
      0.2114742,
      0.09724925,
      0.04472136,
      0.02056571,
      0.009457416,
      0.004349119},
     1},
    {"dynamic, twice as long",
     {.type = RopeType::kDynamic,
      .factor = 4,
      .original_max_position_embeddings = 512},
     1024,
     {1.0,
      0.3654062,
      0.1335217,
      0.04878965,
      0.01782804,
      0.006514475,
      0.00238043,
      0.0008698237},
     1},
    {"llama3",
     {.type = RopeType::kLlama3,
      .factor = 8,
      .original_max_position_embeddings = 64},
     0,
     {1.0,
      0.4598633,
      0.09761663,
      0.01215616,
      0.00559017,
      0.002570714,
      0.001182177,
      0.0005436398},
     1},
    {"yarn",
     {.type = RopeType::kYarn,
      .factor = 4,
      .original_max_position_embeddings = 128},
     0,
     {1.0,
      0.3736389,
      0.1321714,
      0.04254655,
      0.01118034,
      0.005141428,
      0.002364354,
      0.00108728},
     1.138629436111989},
    {"yarn with every key",
     {.type = RopeType::kYarn,
      .factor = 4,
      .original_max_position_embeddings = 128,
      .beta_fast = 16,
      .beta_slow = 2,
      .truncates = false,
      .mscale = 1.0,
      .mscale_all_dim = 0.5},
     0,
     {1.0,
      0.3710845,
      0.1113971,
      0.02431231,
      0.01118034,
      0.005141428,
      0.002364354,
      0.00108728},
     1.0648216253695715},
    {"yarn with an attention factor",
     {.type = RopeType::kYarn,
      .factor = 4,
      .original_max_position_embeddings = 128,
      .attention_factor = 0.75},
     0,
     {1.0,
      0.3736389,
      0.1321714,
      0.04254655,
      0.01118034,
      0.005141428,
      0.002364354,
      0.00108728},
     0.75},
};

TEST(RotaryFrequencies, AreThoseOfTransformersForEveryRopeType) {
  for (const Case& test : kCases) {
    const RotaryDescription rotary{.theta = 500, .scaling = test.scaling};
    EXPECT_EQ(
        depend_on_length(rotary), test.scaling.type == RopeType::kDynamic);
    const RotaryFrequencies found = rotary_frequencies(rotary, 16, test.length);
    EXPECT_DOUBLE_EQ(found.magnitude, test.magnitude) << test.name;
    ASSERT_EQ(found.values.size(), test.frequencies.size());
    for (size_t i = 0; i < found.values.size(); ++i)
      EXPECT_NEAR(found.values[i] / test.frequencies[i], 1, 1e-6)
          << test.name << ' ' << i;
  }
}

}  // namespace
}  // namespace brigade

#include "brigade/planner/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"
#include "support.h"

namespace brigade::planner {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<std::string> problems_of(
    const Layout& layout,
    const Batch& batch = {.sequence_tokens = 8192, .sequences = 1024}) {
  std::vector<std::string> problems;
  validate_layout(
      layout, llama_8b(), batch, layout.dims.world_size(), problems);
  return problems;
}

TEST(Layout, ComesBackFromItsText) {
  Layout layout;
  layout.dims = {.dp = 8, .tp = 4, .pp = 2, .cp = 2};
  layout.zero_stage = 1;
  layout.tokens = TokenLayout::kSharded;
  layout.micro_batch = 3;
  layout.schedule = ScheduleKind::kInterleaved1F1B;
  layout.virtual_stages = 4;
  layout.recompute = Recompute::kSelective;
  const std::string text = to_string(layout);
  EXPECT_EQ(text, "dp8-tp4-pp2-cp2-zero1-sp-mb3-interleaved_1f1b-v4-selective");
  EXPECT_EQ(parse_layout(text), layout);
}

TEST(Layout, WithExpertParallelComesBackFromItsText) {
  Layout layout;
  layout.dims = {.dp = 8, .cp = 2, .ep = 4};
  EXPECT_EQ(to_string(layout), "dp8-tp1-pp1-cp2-ep4-zero0-mb1-1f1b-v1-none");
  EXPECT_EQ(parse_layout(to_string(layout)), layout);
}

TEST(Layout, ExpertsAreDividedWhereTheyDivide) {
  const auto problems_with = [](const ModelShape& shape, ParallelDims dims) {
    std::vector<std::string> problems;
    validate_layout(
        {.dims = dims},
        shape,
        {.sequence_tokens = 4096, .sequences = 960},
        dims.world_size(),
        problems);
    return problems;
  };
  const ModelShape qwen = qwen3_30b_a3b();
  EXPECT_THAT(problems_with(qwen, {.dp = 32, .ep = 32}), ElementsAre());
  EXPECT_THAT(
      problems_with(qwen, {.dp = 12, .ep = 12}),
      ElementsAre(HasSubstr("ep 12 does not divide the 128 experts")));
  EXPECT_THAT(
      problems_with(qwen, {.dp = 4, .ep = 8}),
      ElementsAre(HasSubstr("ep 8 does not divide dp 4 * cp 1")));
  EXPECT_THAT(
      problems_with(llama_8b(), {.dp = 4, .ep = 2}),
      ElementsAre(HasSubstr("ep 2: llama-3-8b has no experts to divide")));
  // All layers have experts, whose width alone is cut.
  ModelShape odd = qwen;
  odd.intermediate = 1;
  EXPECT_THAT(problems_with(odd, {.tp = 2}), ElementsAre());
  odd.experts->width = 769;
  EXPECT_THAT(
      problems_with(odd, {.tp = 2}),
      ElementsAre(HasSubstr("moe_intermediate_size = 769")));
}

TEST(Layout, PartsAtTheirDefaultMayBeLeftOut) {
  Layout expected;
  expected.dims.tp = 8;
  expected.micro_batch = 2;
  EXPECT_EQ(parse_layout("tp8-mb2"), expected);
}

TEST(Layout, AnUnknownPartIsNamedWithTheForm) {
  for (const char* text : {"dp8-tq4", "dp0", "zero4", "dp8--tp2", "tp"}) {
    EXPECT_THAT(
        [&] { parse_layout(text); },
        ThrowsMessage<ConfigError>(AllOf(
            HasSubstr("is no part of a layout; the form is dp8-tp4-pp2"),
            HasSubstr(text))))
        << text;
  }
}

TEST(Layout, AnImpossibleLayoutSaysWhy) {
  EXPECT_THAT(problems_of({}), ElementsAre());
  EXPECT_THAT(
      problems_of({.dims = {.tp = 3}}),
      ElementsAre(
          HasSubstr("num_attention_heads = 32 cannot be cut for tp 3"),
          HasSubstr("tp 3"),
          HasSubstr("tp 3")));
  EXPECT_THAT(
      problems_of({.dims = {.dp = 3}}),
      ElementsAre(HasSubstr(
          "a global batch of 1024 sequences does not divide by dp 3 * "
          "micro-batch 1")));
  EXPECT_THAT(
      problems_of({.dims = {.pp = 35}}),
      ElementsAre(HasSubstr("35 stages for 32 layers; at most 34")));
  EXPECT_THAT(
      problems_of({.virtual_stages = 2}),
      ElementsAre(HasSubstr("2 virtual stages need a pp of at least 2")));
  EXPECT_THAT(
      problems_of({.zero_stage = 1}),
      ElementsAre(
          HasSubstr("zero stage 1 shards over dp 1 * cp 1, which is 1")));
  EXPECT_THAT(
      problems_of({.dims = {.dp = 2, .pp = 2}, .zero_stage = 3}),
      ElementsAre(HasSubstr("zero stage 3 with pp 2")));
  EXPECT_THAT(
      problems_of(
          {.dims = {.tp = 8}, .tokens = TokenLayout::kSharded},
          {.sequence_tokens = 1020, .sequences = 8}),
      ElementsAre(HasSubstr("1020 tokens of a micro-batch do not divide by tp "
                            "8")));
  EXPECT_THAT(
      problems_of(
          {.dims = {.pp = 8},
           .schedule = ScheduleKind::kInterleaved1F1B,
           .virtual_stages = 2},
          {.sequence_tokens = 1024, .sequences = 4}),
      ElementsAre(HasSubstr("needs at least 8 micro-batches")));
}

TEST(Layout, ADeviceCountThatIsNotTheProductIsRefused) {
  std::vector<std::string> problems;
  validate_layout(
      {.dims = {.dp = 2}},
      llama_8b(),
      {.sequence_tokens = 1024, .sequences = 8},
      8,
      problems);
  EXPECT_THAT(problems, ElementsAre(HasSubstr("but world size is 8")));
}

}  // namespace
}  // namespace brigade::planner

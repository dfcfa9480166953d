#include "brigade/planner/step_estimate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support.h"

namespace brigade::planner {
namespace {

using machine::Collective;
using machine::Machine;

// Stages that take equally long: nearly no vocabulary, layers in equal parts,
// and links that cost nothing.
Training even_stages(int stages) {
  Training training = llama_on("h100");
  training.shape.vocab = 64;
  training.shape.layers = stages;
  if (stages > 1)
    training.stage_layers.assign(static_cast<size_t>(stages), 1);
  training.machine.device.kernel_gap_s = 0;
  training.machine.device.memory_bytes_per_s = 1e18;
  training.machine.intra = {1e18, 0, 1};
  training.machine.inter = {1e18, 0, 1};
  training.constants.tile_overhead_s = 0;
  return training;
}

StepEstimate pipeline(ScheduleKind kind, int p, int v, int m) {
  Training training = even_stages(p * v);
  training.batch.sequences = m;
  Layout layout;
  layout.dims.pp = p;
  layout.schedule = kind;
  layout.virtual_stages = v;
  return StepEstimator(training).estimate(layout);
}

// Narayanan et al. 2021: (p-1)/m of the computation, (p-1)/(v m) interleaved.
TEST(StepEstimate, BubblesAreThePapers) {
  for (int p : {2, 4, 8}) {
    for (int m : {p, 4 * p, 16 * p + 3 * p}) {
      const double one = static_cast<double>(p - 1) / (m + p - 1);
      EXPECT_NEAR(pipeline(ScheduleKind::kAfab, p, 1, m).bubble, one, 3e-3);
      EXPECT_NEAR(pipeline(ScheduleKind::kOneFOneB, p, 1, m).bubble, one, 3e-3);
      for (int v : {2, 4}) {
        EXPECT_NEAR(
            pipeline(ScheduleKind::kInterleaved1F1B, p, v, m).bubble,
            static_cast<double>(p - 1) / (v * m + p - 1),
            3e-3)
            << "p " << p << " v " << v << " m " << m;
      }
    }
  }
}

// Qi et al. 2023: ZB-H1 waits (p-1)(f+b-w).
TEST(StepEstimate, TheZeroBubbleScheduleWaitsForFAndBLessW) {
  for (int p : {2, 4}) {
    const int m = 6 * p;
    Training training = even_stages(p);
    training.batch.sequences = m;
    Layout layout;
    layout.dims.pp = p;
    layout.schedule = ScheduleKind::kZeroBubble;
    const PartTime layer = layer_time(training, layout, 0);
    const double f = layer.forward.total();
    const double b = layer.backward_input.total();
    const double w = layer.backward_weight.total();
    const StepEstimate estimate = StepEstimator(training).estimate(layout);
    EXPECT_NEAR(
        estimate.parts.bubble, (p - 1) * (f + b - w), 0.004 * m * (f + b + w));
    EXPECT_LT(
        estimate.parts.bubble,
        pipeline(ScheduleKind::kOneFOneB, p, 1, m).parts.bubble);
  }
}

TEST(StepEstimate, ALongPipelineIsContinuedAsItsSimulationWouldEnd) {
  struct Pipeline {
    ScheduleKind schedule;
    int pp, virtual_stages, micro_batches;
  };
  for (const Pipeline& pipeline : std::vector<Pipeline>{
           {ScheduleKind::kOneFOneB, 4, 1, 37},
           {ScheduleKind::kZeroBubble, 4, 1, 37},
           {ScheduleKind::kInterleaved1F1B, 4, 2, 37},
           {ScheduleKind::kInterleaved1F1B, 2, 2, 256},
           {ScheduleKind::kInterleaved1F1B, 2, 4, 256},
           {ScheduleKind::kInterleaved1F1B, 4, 4, 67}}) {
    Training training = llama_on("h100");
    training.batch.sequences = pipeline.micro_batches;
    Layout layout;
    layout.dims.pp = pipeline.pp;
    layout.schedule = pipeline.schedule;
    layout.virtual_stages = pipeline.virtual_stages;
    StepEstimator estimator(training);
    const StepParts parts = estimator.estimate(layout).parts;
    const double whole =
        estimator.timeline(layout, pipeline.micro_batches).makespan;
    EXPECT_NEAR(parts.computation.total() + parts.bubble, whole, 1e-3 * whole)
        << to_string(pipeline.schedule) << ", pp " << pipeline.pp << ", v "
        << pipeline.virtual_stages;
  }
}

// One expert for all tokens is the MLP, a router and copies of rows.
TEST(StepEstimate, OneExpertMultipliesAsTheMlpDoes) {
  Training training = llama_on("h100");
  const PassTime one = layer_time(training, {}, 0).total();
  training.shape.experts = ExpertsConfig{
      .num_experts = 1,
      .num_experts_per_tok = 1,
      .width = training.shape.intermediate};
  const PassTime expert =
      layer_time(training, {}, 0, LayerMlp::kExperts).total();
  EXPECT_GE(expert.products, one.products);
  EXPECT_LT(expert.products, 1.01 * one.products);
  EXPECT_EQ(expert.attention, one.attention);
  EXPECT_GT(expert.elementwise, one.elementwise);
  EXPECT_EQ(expert.ep, 0);
}

// Four times in all: there and back, and their gradients; sizes go first.
TEST(StepEstimate, RowsTravelFourTimesToTheRanksOfTheirExperts) {
  Training training = llama_on("h100");
  training.shape = qwen3_30b_a3b();
  training.batch = {.sequence_tokens = 4096, .sequences = 64};
  Layout layout;
  layout.dims = {.dp = 32, .ep = 16};
  layout.micro_batch = 2;
  const PassTime time =
      layer_time(training, layout, 0, LayerMlp::kExperts).total();
  const auto seconds = [&](double bytes) {
    return all_to_all_seconds(training.machine, {16, 8}, bytes);
  };
  // Two bytes of each of 2,048 features, once for each of 8 experts.
  const double rows = 2.0 * 2048 * 8 * 4096 * 2;
  EXPECT_NEAR(time.ep, 4 * seconds(rows) + seconds(8), 1e-12);
  layout.recompute = Recompute::kFull;
  EXPECT_NEAR(
      layer_time(training, layout, 0, LayerMlp::kExperts).total().ep,
      6 * seconds(rows) + seconds(8),
      1e-12);
  EXPECT_GT(StepEstimator(training).estimate(layout).parts.computation.ep, 0);
}

TEST(StepEstimate, PartsAddUpToTheStep) {
  Training training = llama_on("h100");
  StepEstimator estimator(training);
  Layout layout;
  layout.dims = {.dp = 32, .tp = 4, .pp = 2, .cp = 2};
  layout.tokens = TokenLayout::kSharded;
  layout.recompute = Recompute::kFull;
  layout.zero_stage = 1;
  const StepEstimate estimate = estimator.estimate(layout);
  EXPECT_NEAR(
      estimate.seconds, estimate.parts.total(), 1e-12 * estimate.seconds);
  EXPECT_NEAR(
      estimate.tokens_per_s_per_device * estimate.seconds * 512,
      1024.0 * 8192,
      1e-3);
  EXPECT_GT(estimate.mfu, 0.2);
  EXPECT_LT(estimate.mfu, 0.7);
  EXPECT_GT(estimate.parts.computation.tp, 0);
  EXPECT_GT(estimate.parts.computation.cp, 0);
}

// Embedding and head are regions of tensor parallel too; no rank has all
// logits.
TEST(StepEstimate, TensorParallelExchangesAtBothEnds) {
  Training training = llama_on("h100");
  training.machine.collectives = {
      {Collective::kAllReduce, 4, 1, 1},
      {Collective::kAllReduce, 4, int64_t{1} << 40, 1},
      {Collective::kReduceScatter, 4, 1, 10},
      {Collective::kReduceScatter, 4, int64_t{1} << 40, 10},
      {Collective::kAllGather, 4, 1, 100},
      {Collective::kAllGather, 4, int64_t{1} << 40, 100}};
  Layout layout;
  layout.dims.tp = 4;
  PartTime embedding = embedding_time(training, layout);
  PartTime head = head_time(training, layout);
  EXPECT_EQ(embedding.forward.tp, 1);
  EXPECT_EQ(embedding.backward_input.tp, 0);
  EXPECT_EQ(head.forward.tp, 2);
  EXPECT_EQ(head.backward_input.tp, 1);
  layout.tokens = TokenLayout::kSharded;
  embedding = embedding_time(training, layout);
  head = head_time(training, layout);
  EXPECT_EQ(embedding.forward.tp, 10);
  EXPECT_EQ(embedding.backward_input.tp, 100);
  EXPECT_EQ(head.forward.tp, 100 + 2);
  EXPECT_EQ(head.backward_input.tp, 10);
  layout.dims.tp = 1;
  EXPECT_EQ(embedding_time(training, layout).forward.tp, 0);
  EXPECT_EQ(head_time(training, layout).forward.tp, 0);
}

// A third more of the products, and the statistics of tensor parallel twice.
TEST(StepEstimate, TheHeadOfPairsIsComputedTwice) {
  Layout layout;
  layout.dims.tp = 2;
  Training training = llama_on("h100");
  const PartTime once = head_time(training, layout);
  training.head = HeadWork::of({.kind = LossKind::kDpo}, 32);
  const PartTime twice = head_time(training, layout);
  EXPECT_EQ(training.head.teacher_tokens, 0);
  EXPECT_DOUBLE_EQ(twice.forward.products, 2 * once.forward.products);
  EXPECT_DOUBLE_EQ(twice.forward.elementwise, 2 * once.forward.elementwise);
  EXPECT_EQ(twice.backward_input.products, once.backward_input.products);
  EXPECT_EQ(twice.backward_weight.products, once.backward_weight.products);
  EXPECT_GT(twice.forward.tp, once.forward.tp);
}

TEST(StepEstimate, ATeacherSendsTwoSumsMoreAndItsTokensToTheDevice) {
  Layout layout;
  layout.dims.tp = 2;
  Training training = llama_on("h100");
  training.machine.device.kernel_gap_s = 0;
  const PartTime plain = head_time(training, layout);
  training.head = HeadWork::of({.kind = LossKind::kDistill}, 32);
  const PartTime taught = head_time(training, layout);
  EXPECT_EQ(taught.forward.products, plain.forward.products);
  EXPECT_GT(taught.forward.tp, plain.forward.tp);
  const double tokens = 8192;
  EXPECT_DOUBLE_EQ(
      taught.forward.data / plain.forward.data,
      (8 + 12 * 32) * tokens / (8 * tokens));
}

// A device that is better in any one respect is never slower.
TEST(StepEstimate, ABetterMachineIsNeverSlower) {
  Layout layout;
  layout.dims = {.dp = 32, .tp = 4, .pp = 2, .cp = 2};
  layout.zero_stage = 1;
  const Training training = llama_on("a100-80");
  const double before = StepEstimator(training).estimate(layout).seconds;
  const auto after = [&](auto change) {
    Training better = training;
    change(better.machine);
    return StepEstimator(better).estimate(layout).seconds;
  };
  EXPECT_LT(after([](Machine& m) { m.device.sustained *= 1.1; }), before);
  EXPECT_LT(
      after([](Machine& m) { m.device.memory_bytes_per_s *= 2; }), before);
  EXPECT_LT(after([](Machine& m) { m.intra.bytes_per_s *= 2; }), before);
  EXPECT_LE(after([](Machine& m) { m.inter.bytes_per_s *= 2; }), before);
  EXPECT_LE(after([](Machine& m) { m.inter.latency_s /= 2; }), before);
}

TEST(StepEstimate, RecomputationTakesLongerAndFullLongest) {
  StepEstimator estimator(llama_on("h100"));
  Layout layout;
  layout.dims.dp = 512;
  double before = 0;
  for (Recompute recompute :
       {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    layout.recompute = recompute;
    const double seconds = estimator.estimate(layout).seconds;
    EXPECT_GT(seconds, before);
    before = seconds;
  }
}

// 8 bytes for each token go to the first stage, 8 for each target to the last.
TEST(StepEstimate, BatchesComeOverTheHostsLink) {
  Training training = llama_on("a100-80");
  training.machine.device.kernel_gap_s = 0;
  training.machine.device.host_bytes_per_s = 1e6;
  Layout layout;
  layout.dims.cp = 2;
  const double bytes = 8.0 * 8192 / 2;
  EXPECT_DOUBLE_EQ(embedding_time(training, layout).total().data, bytes / 1e6);
  EXPECT_DOUBLE_EQ(head_time(training, layout).total().data, bytes / 1e6);
  EXPECT_EQ(layer_time(training, layout, 0).total().data, 0);
  const double slow = StepEstimator(training).estimate(layout).seconds;
  // Without a link it is one copy in memory.
  training.machine.device.host_bytes_per_s = 0;
  const double rate = training.machine.device.memory_bytes_per_s *
                      training.constants.memory_efficiency;
  EXPECT_DOUBLE_EQ(head_time(training, layout).total().data, 2 * bytes / rate);
  EXPECT_LT(StepEstimator(training).estimate(layout).seconds, slow);
}

// A window in half of the layers saves half as much as a window in all of them.
TEST(StepEstimate, EachLayerHasItsOwnWindow) {
  Training training = llama_on("h100");
  Layout layout;
  layout.dims.dp = 512;
  const auto attention = [&](int64_t odd, int64_t even) {
    training.shape.windows.clear();
    for (int layer = 0; layer < training.shape.layers; ++layer)
      training.shape.windows.push_back(layer % 2 == 0 ? even : odd);
    return StepEstimator(training).estimate(layout).parts.computation.attention;
  };
  const double all = attention(0, 0);
  const double half = attention(0, 1024);
  const double none = attention(1024, 1024);
  EXPECT_NEAR(half, (all + none) / 2, 1e-9 * all);
  EXPECT_NEAR(none / all, mean_keys(8192, 1024) / mean_keys(8192, 0), 0.01);
  training.shape.windows.clear();
  EXPECT_EQ(
      StepEstimator(training).estimate(layout).parts.computation.attention,
      all);
}

// Each micro-batch has three products with every matrix: with the layers' and
// the head's 7.505 B of the 8.03 B parameters.
TEST(StepEstimate, WeightsTakeTimeInEachMicroBatch) {
  Training training = llama_on("h100");
  Layout layout;
  layout.dims.dp = 128;  // 8 micro-batches
  const auto products = [&](double weight_element_s) {
    training.machine.device.weight_element_s = weight_element_s;
    return StepEstimator(training).estimate(layout).parts.computation.products;
  };
  const double matrices =
      32.0 * 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336) + 128256.0 * 4096;
  const double seconds = products(1e-10) - products(0);
  EXPECT_NEAR(seconds, 8 * 3 * 1e-10 * matrices, 1e-9 * seconds);
}

TEST(StepEstimate, OverlapHidesMostOfTheReduction) {
  Training training = llama_on("h100");
  Layout layout;
  layout.dims.dp = 512;
  const double hidden =
      StepEstimator(training).estimate(layout).parts.reduction;
  auto program = std::make_shared<Program>();
  program->reduces_in_backward = false;
  training.program = program;
  const double exposed =
      StepEstimator(training).estimate(layout).parts.reduction;
  EXPECT_LT(hidden, 0.7 * exposed);
  EXPECT_GT(hidden, 0);
}

TEST(StepEstimate, WaitingForTheSlowestGrowsAsTheMaximumOfNormals) {
  EXPECT_EQ(slowest_of(1, 0.02), 0);
  EXPECT_NEAR(
      slowest_of(1024, 0.02), 0.02 * std::sqrt(2 * std::log(1024)), 1e-12);
}

}  // namespace
}  // namespace brigade::planner

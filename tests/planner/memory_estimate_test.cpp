// Memory against closed forms of papers.
#include "brigade/planner/memory_estimate.h"

#include <gtest/gtest.h>

#include "brigade/planner/step_estimate.h"
#include "brigade/schedule/simulator.h"
#include "support.h"

namespace brigade::planner {
namespace {

MemoryParts on_one_rank(const Training& training, const Layout& layout) {
  return largest(
      estimate_memory(training, layout, cut_stages(training, layout.stages())));
}

// 10 bytes per logit; the other activations do not depend on the vocabulary.
TEST(MemoryEstimate, LogitsAreOneChunks) {
  const auto logits = [](int tp, int64_t tokens) {
    Layout layout;
    layout.dims.tp = tp;
    Training training = llama_on("h100");
    training.batch = {.sequence_tokens = tokens, .sequences = 1};
    const auto activations = [&](int64_t vocab) {
      training.shape.vocab = vocab;
      return StepEstimator(training).memory(layout)[0].activations;
    };
    return (activations(64000) - activations(32000)) / 10 / 32000;
  };
  EXPECT_EQ(logits(1, 128), 128);
  EXPECT_EQ(logits(1, 8192), 1024);
  EXPECT_EQ(logits(2, 128), 128 / 2);
  EXPECT_EQ(logits(2, 512), 256 / 2);
  EXPECT_EQ(logits(2, 2048), 512 / 2);
  EXPECT_EQ(logits(2, 8192), 1024 / 2);
}

// Twice as many bytes, but for attention's sums, which are fp32 in both, and the
// logits: those of fp32 have no copy.
TEST(MemoryEstimate, ActivationsOfFp32AreTwiceThoseOfBf16) {
  Layout layout;
  layout.dims = {.dp = 1, .tp = 2, .pp = 2};
  layout.micro_batch = 2;
  Training training = llama_on("h100");
  training.batch = {.sequence_tokens = 4096, .sequences = 32};
  const auto of = [&](const Precision& precision) {
    training.precision = precision;
    return StepEstimator(training).memory(layout)[0];
  };
  const MemoryParts bf16 = of({});
  const MemoryParts fp32 = of(Precision::fp32());
  EXPECT_NEAR(fp32.activations / bf16.activations, 2, 1e-3);
  EXPECT_EQ(fp32.buffers, 2 * bf16.buffers);
  const double fp32_logits = logits_bytes(training, layout);
  training.precision = {};
  EXPECT_EQ(fp32_logits, logits_bytes(training, layout) / 10 * 8);
}

// q and k are kept before their norms, in 2 bytes.
TEST(MemoryEstimate, NormsOfQAndKKeepTheirInputs) {
  Layout layout;
  Training training = llama_on("h100");
  const auto activations = [&](bool qk_norm) {
    training.shape.qk_norm = qk_norm;
    return on_one_rank(training, layout).activations;
  };
  const ModelShape& shape = training.shape;
  const auto width = static_cast<double>(
      shape.query_width() + shape.kv_heads * shape.head_dim);
  EXPECT_EQ(
      activations(true) - activations(false),
      2 * static_cast<double>(shape.layers) * width *
          local_tokens(training, layout));
}

// 8 kv heads: with tp 16 each is on two ranks.
TEST(MemoryEstimate, KvHeadsThatRanksShareAreOnEachOfThem) {
  Training training = llama_on("h100");
  const ModelShape& shape = training.shape;
  const auto weights = [&](int tp) {
    Layout layout;
    layout.dims.tp = tp;
    return on_one_rank(training, layout).weights;
  };
  // Half a head of k and half a one of v.
  const auto copied =
      static_cast<double>(shape.layers * shape.hidden * shape.head_dim);
  EXPECT_EQ(weights(16) - weights(8) / 2, 2 * copied);
}

// 12 bytes for each of k tokens, of all micro-batches of a step, on each rank.
TEST(MemoryEstimate, TeacherOutputsAreOnEveryRankOfAPipeline) {
  Layout layout;
  layout.dims = {.dp = 2, .pp = 2, .cp = 2};
  layout.micro_batch = 2;
  Training training = llama_on("h100");
  training.batch = {.sequence_tokens = 8192, .sequences = 32};
  const auto before = StepEstimator(training).memory(layout);
  training.head.teacher_tokens = 32;
  const auto taught = StepEstimator(training).memory(layout);
  const double tokens = 8192 * 8;  // of 8 micro-batches on a rank of cp
  EXPECT_EQ(teacher_bytes(training, layout), 12 * 32 * tokens);
  EXPECT_EQ(taught[0].activations - before[0].activations, 12 * 32 * tokens);
  // The last one also has masks of the logits.
  EXPECT_EQ(
      taught[1].activations - before[1].activations,
      12 * 32 * tokens + 5.0 * 1024 * 128256);
}

TEST(MemoryEstimate, MixedPrecisionIs16BytesAParameter) {
  const Training training = llama_on("h100");
  const MemoryParts memory = on_one_rank(training, {});
  EXPECT_DOUBLE_EQ(
      memory.weights + memory.gradients + memory.optimizer,
      16.0 * static_cast<double>(total_parameters(training.shape)));
}

// Rajbhandari et al. 2020, figure 1, with 2 + 4 + 10 bytes instead of
// 2 + 2 + 12.
TEST(MemoryEstimate, ZeroStagesShardWhatTheyAreNamedFor) {
  const Training training = llama_on("h100");
  const auto n = static_cast<double>(total_parameters(training.shape));
  Layout layout;
  layout.dims.dp = 64;
  const double expected[] = {
      16 * n, 6 * n + 10 * n / 64, 2 * n + 14 * n / 64, 16 * n / 64};
  for (int stage = 0; stage <= 3; ++stage) {
    layout.zero_stage = stage;
    const MemoryParts memory = on_one_rank(training, layout);
    EXPECT_NEAR(
        memory.weights + memory.gradients + memory.optimizer,
        expected[stage],
        1e-6 * expected[stage])
        << "stage " << stage;
  }
}

Training qwen3_on(const std::string& machine) {
  Training training = llama_on(machine);
  training.shape = qwen3_30b_a3b();
  return training;
}

// Weights and gradients of experts are divided by ep. What ZeRO divides by the
// ranks that have them is 1 / (dp * cp) in all, whatever ep is.
TEST(MemoryEstimate, ExpertsAreDividedByEp) {
  const Training training = qwen3_on("h100");
  const double experts = 28'991'029'248;
  const double others = 30'532'122'624 - experts;
  for (const int ep : {1, 2, 16, 64}) {
    Layout layout;
    layout.dims.dp = 32;
    layout.dims.cp = 2;
    layout.dims.ep = ep;
    const double held = others + experts / ep;
    MemoryParts memory = on_one_rank(training, layout);
    EXPECT_NEAR(memory.weights, 2 * held, 1) << ep;
    EXPECT_NEAR(memory.gradients, 4 * held, 1) << ep;
    EXPECT_NEAR(memory.optimizer, 10 * held, 1) << ep;
    layout.zero_stage = 1;
    memory = on_one_rank(training, layout);
    EXPECT_NEAR(memory.weights, 2 * held, 1) << ep;
    EXPECT_NEAR(memory.optimizer, 10 * (others + experts) / 64, 1) << ep;
    layout.zero_stage = 3;
    memory = on_one_rank(training, layout);
    EXPECT_NEAR(memory.weights, 2 * (others + experts) / 64, 1) << ep;
    EXPECT_NEAR(memory.gradients, 4 * (others + experts) / 64, 1) << ep;
  }
}

TEST(MemoryEstimate, TheStagesOfAPipelineHoldAllExperts) {
  Training training = qwen3_on("h100");
  training.shape.experts->mlp_only_layers = {0, 7};
  Layout layout;
  layout.dims = {.dp = 4, .tp = 2, .pp = 4};
  layout.dims.ep = 4;
  double weights = 0;
  for (const MemoryParts& memory :
       estimate_memory(training, layout, cut_stages(training, 4)))
    weights += memory.weights;
  const double experts =
      46.0 * static_cast<double>(expert_parameters(training.shape));
  const double all = static_cast<double>(total_parameters(training.shape));
  EXPECT_NEAR(weights, 2 * (all - experts + experts / 4) / 2, 1);
}

TEST(MemoryEstimate, TheStagesOfAPipelineHoldTheWholeModel) {
  const Training training = llama_on("h100");
  for (int tp : {1, 4}) {
    Layout layout;
    layout.dims.pp = 4;
    layout.dims.tp = tp;
    const auto ranks =
        estimate_memory(training, layout, cut_stages(training, 4));
    double weights = 0;
    for (const MemoryParts& memory : ranks)
      weights += memory.weights;
    EXPECT_DOUBLE_EQ(
        weights * tp,
        2.0 * static_cast<double>(total_parameters(training.shape)));
  }
}

TEST(MemoryEstimate, MicroBatchesInFlightAreTheSimulators) {
  for (ScheduleKind kind :
       {ScheduleKind::kAfab,
        ScheduleKind::kOneFOneB,
        ScheduleKind::kZeroBubble,
        ScheduleKind::kInterleaved1F1B}) {
    for (int p : {2, 4, 5}) {
      for (int m : {p, 2 * p + 1, 4 * p}) {
        Layout layout;
        layout.dims.pp = p;
        layout.schedule = kind;
        layout.virtual_stages = kind == ScheduleKind::kInterleaved1F1B ? 3 : 1;
        const Simulation simulation = simulate(
            make_schedule(
                kind,
                {.ranks = p,
                 .virtual_stages = layout.virtual_stages,
                 .micro_batches = m}),
            {});
        for (int rank = 0; rank < p; ++rank) {
          EXPECT_EQ(
              live_micro_batches(layout, m, rank),
              simulation.peak_live_activations[static_cast<size_t>(rank)])
              << to_string(kind) << " p " << p << " m " << m << " rank "
              << rank;
        }
      }
    }
  }
}

TEST(MemoryEstimate, MoreOfAnAxisNeverNeedsMore) {
  const Training training = llama_on("h100");
  Layout layout;
  layout.dims.dp = 8;
  layout.zero_stage = 1;
  double before = on_one_rank(training, layout).total();
  for (int tp : {2, 4, 8}) {
    layout.dims.tp = tp;
    const double now = on_one_rank(training, layout).total();
    EXPECT_LT(now, before) << "tp " << tp;
    before = now;
  }
}

}  // namespace
}  // namespace brigade::planner

// The ways of other programs, against closed forms of papers.
#include <gtest/gtest.h>

#include "bench/published/setup.h"
#include "brigade/planner/step_estimate.h"
#include "tests/planner/support.h"

namespace brigade::bench {
namespace {

using namespace planner;  // NOLINT(google-build-using-namespace)

void use(const PublishedProgram& program, Training& training) {
  training.program = std::make_shared<PublishedProgram>(program);
}

TEST(PublishedProgram, Gpt2HasTheParametersThatWerePublished) {
  const ModelShape gpt2 = gpt_shape(
      {.layers = 12,
       .hidden = 768,
       .heads = 12,
       .intermediate = 3072,
       .vocab = 50257,
       .positions = 1024},
      "gpt2");
  EXPECT_EQ(total_parameters(gpt2), 124'439'808);
}

TEST(PublishedProgram, ItsMachineFilesAreWhole) {
  for (const std::string name : {"v100", "tpu-v4"})
    EXPECT_EQ(machine_of_file(name).name, name);
}

// Korthikanti et al. 2022, equations 1 to 4 and table 2, for one layer.
TEST(PublishedProgram, ActivationsOfGptAreKorthikantis) {
  Training training = llama_on("a100-80");
  training.shape = gpt_shape(
      {.layers = 24,
       .hidden = 2048,
       .heads = 16,
       .intermediate = 8192,
       .vocab = 51200,
       .positions = 2048},
      "gpt");
  training.batch = {.sequence_tokens = 2048, .sequences = 512};
  PublishedProgram program;
  program.kernel = Attention::kMaterialized;
  use(program, training);
  const double s = 2048;
  const double h = 2048;
  const double a = 16;
  for (int64_t micro_batch : {1, 4}) {
    for (int tp : {1, 2, 8}) {
      const double sbh = s * static_cast<double>(micro_batch) * h;
      const double t = tp;
      Layout layout;
      layout.dims.tp = tp;
      layout.micro_batch = micro_batch;
      const auto bytes = [&](Recompute recompute) {
        return layer_activation_bytes(training, layout, recompute);
      };
      EXPECT_DOUBLE_EQ(
          bytes(Recompute::kNone), sbh * (10 + 24 / t + 5 * a * s / (h * t)));
      EXPECT_DOUBLE_EQ(bytes(Recompute::kSelective), sbh * (10 + 24 / t));
      EXPECT_DOUBLE_EQ(bytes(Recompute::kFull), 2 * sbh);
      layout.tokens = TokenLayout::kSharded;
      EXPECT_DOUBLE_EQ(bytes(Recompute::kNone), sbh / t * (34 + 5 * a * s / h));
      EXPECT_DOUBLE_EQ(bytes(Recompute::kSelective), sbh / t * 34);
      EXPECT_DOUBLE_EQ(bytes(Recompute::kFull), 2 * sbh / t);
    }
  }
}

// Narayanan et al. 2021, section 4.1: of a tensor that all ranks of tensor
// parallel have, each sends its part over the network, and the receivers gather
// the parts inside their node.
TEST(PublishedProgram, RanksOfTensorParallelSendTheirPartsOfATensor) {
  Training training = llama_on("a100-80");
  training.batch.sequences = 64;
  training.machine.intra = {4e9, 0, 1};
  training.machine.inter = {8e9, 0, 1};  // of a node: 1e9 per device
  Layout layout;
  layout.dims = {.dp = 1, .tp = 8, .pp = 2};
  const auto transfers = [&](TransferPieces pieces) {
    PublishedProgram program;
    program.waits_for_transfers = true;
    program.transfer_pieces = pieces;
    use(program, training);
    return StepEstimator(training).estimate(layout).parts.computation.pp;
  };
  // Each of two stages sends or receives once in forward and in backward.
  const double times = 2.0 * static_cast<double>(training.batch.sequences);
  const double bytes = 2.0 * 8192 * 4096;
  const double launch = 8.4e-6;
  EXPECT_NEAR(
      transfers(TransferPieces::kWhole), times * (launch + bytes / 1e9), 1e-9);
  EXPECT_NEAR(
      transfers(TransferPieces::kOfRanks),
      times * (2 * launch + bytes / 8 / 1e9 + 7.0 / 8 * bytes / 4e9),
      1e-9);
  // With sharded tokens there is no whole tensor.
  layout.tokens = TokenLayout::kSharded;
  EXPECT_EQ(
      transfers(TransferPieces::kWhole), transfers(TransferPieces::kOfRanks));
}

TEST(PublishedProgram, BlockingLaunchesCostTheHostsTimeInEachPassOverALayer) {
  Training training = llama_on("a100-80");
  Layout layout;
  EXPECT_EQ(layer_time(training, layout, 0).total().host, 0);
  PublishedProgram program;
  program.host_s = 0.25;
  use(program, training);
  PartTime layer = layer_time(training, layout, 0);
  EXPECT_EQ(layer.forward.host, 0.25);
  EXPECT_EQ(layer.backward_input.host, 0.25);
  EXPECT_EQ(layer.backward_weight.host, 0.25);
  const double recomputed = layer.forward.computation();
  layout.recompute = Recompute::kFull;
  layer = layer_time(training, layout, 0);
  EXPECT_EQ(layer.backward_input.recompute, recomputed);
  // It is part of the step: 32 layers, each micro-batch.
  training.batch.sequences = 3;
  const StepEstimate estimate = StepEstimator(training).estimate(layout);
  EXPECT_EQ(estimate.parts.computation.host, 3 * 32 * 3 * 0.25);
  EXPECT_GT(estimate.seconds, 3 * 32 * 4 * 0.25);
}

// The first of m micro-batches leaves its gradient as it is; each of the others
// reads it in 2 bytes per parameter, and reads and writes the sum in 4.
TEST(PublishedProgram, SeparateAccumulationMovesTenBytesPerParameter) {
  Training training = llama_on("h100");
  training.machine.device.kernel_gap_s = 0;
  Layout layout;
  layout.dims.dp = 128;  // 8 micro-batches
  const auto elementwise = [&](Accumulation accumulation) {
    PublishedProgram program;
    program.adds = accumulation;
    use(program, training);
    return StepEstimator(training)
        .estimate(layout)
        .parts.computation.elementwise;
  };
  const double seconds = elementwise(Accumulation::kSeparate) -
                         elementwise(Accumulation::kInProduct);
  const double rate = training.machine.device.memory_bytes_per_s *
                      training.constants.memory_efficiency;
  EXPECT_NEAR(seconds, 7 * 10 * 8'030'261'248 / rate, 1e-6 * seconds);
  layout.dims.dp = 1024;  // one
  EXPECT_EQ(
      elementwise(Accumulation::kSeparate),
      elementwise(Accumulation::kInProduct));
}

TEST(PublishedProgram, MegatronsOrderPutsDpBesideTp) {
  const ParallelDims dims = {.dp = 8, .tp = 4, .pp = 12};
  Training training = llama_on("a100-80");
  EXPECT_EQ(training.place_dp_cp(dims), (machine::GroupPlace{8, 1}));
  PublishedProgram program;
  program.rank_order = RankOrder::kPpDpCpTp;
  use(program, training);
  EXPECT_EQ(training.place_dp_cp(dims), (machine::GroupPlace{8, 2}));
}

}  // namespace
}  // namespace brigade::bench

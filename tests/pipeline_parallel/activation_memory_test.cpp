// What the tables promise about activations, in allocated bytes.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "brigade/pipeline_parallel/executor.h"
#include "brigade/schedule/make_schedule.h"
#include "mlp_chain.h"
#include "tests/support/memory_meter.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::MemoryMeter;
using testing::RanksOptions;
using testing::run_ranks;

constexpr int64_t kWide = 4096;

// A stage that saves one activation of kWide floats per micro-batch and sends
// one of the same size.
std::shared_ptr<PipelineStage> wide_stage(int s, int stages) {
  return std::make_shared<PipelineStage>(
      s, stages, [s, stages](int, const torch::Tensor& input) {
        const torch::Tensor x =
            s == 0 ? torch::full({kWide}, 0.5).set_requires_grad(true) : input;
        const torch::Tensor y = torch::sigmoid(x) + 1;
        return s == stages - 1 ? y.sum() : y;
      });
}

int64_t peak_of_first_rank(ScheduleKind kind, int micro_batches) {
  int64_t peak = 0;
  // No records: they would keep every launch's tensors.
  const RanksOptions options{.check_collectives = true, .max_records = 0};
  const auto body = [&](CommunicatorPtr pp) {
    const Schedule schedule = make_schedule(
        kind,
        {.ranks = 2, .virtual_stages = 1, .micro_batches = micro_batches});
    PipelineExecutor executor(
        schedule,
        pp,
        {wide_stage(pp->rank(), 2)},
        {.transfers =
             {.shape = {kWide}, .dtype = torch::kFloat, .device = torch::kCPU},
         .callbacks = {}});
    const MemoryMeter meter;
    executor.run();
    if (pp->rank() == 0)
      peak = meter.peak_bytes();
  };
  run_ranks(2, body, options);
  return peak;
}

TEST(ActivationMemory, IsBoundedByStagesIn1F1BAndByMicroBatchesInAfab) {
  constexpr int64_t kActivation = kWide * 4;
  const int64_t few = peak_of_first_rank(ScheduleKind::kOneFOneB, 4);
  const int64_t many = peak_of_first_rank(ScheduleKind::kOneFOneB, 32);
  const int64_t all = peak_of_first_rank(ScheduleKind::kAfab, 32);
  // Two live micro-batches of two tensors each, what is being computed and
  // what is being sent and received.
  EXPECT_LE(few, 12 * kActivation);
  EXPECT_LE(many, 12 * kActivation);
  EXPECT_GE(all, 32 * kActivation);
}

}  // namespace
}  // namespace brigade

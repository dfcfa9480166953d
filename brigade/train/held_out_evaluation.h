// The losses over held-out samples that a run computes while it trains.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/data/token_loss.h"
#include "brigade/data/training_data.h"
#include "brigade/metrics/metrics.h"
#include "brigade/pipeline_parallel/executor.h"
#include "brigade/train/micro_batches.h"
#include "brigade/train/train_step.h"

namespace brigade {

// The same samples every time and under every layout.
class HeldOutEvaluation {
 public:
  struct Hooks {
    // Before each batch.
    std::function<void()> on_batch;
    // Whether this rank asks the run to stop, looked up after each batch.
    std::function<bool()> wants_stop;
  };

  // `data` has held-out samples. All but it must outlive this.
  HeldOutEvaluation(
      const TrainConfig& config,
      const ProcessMesh& mesh,
      TrainStep& step,
      const TrainingData& data,
      Hooks hooks);

  // Collective. Fills the metrics of evaluations, on ranks of the last stage.
  // Returns whether a rank asked the run to stop meanwhile: what it ended early
  // has no loss.
  bool run(StepMetrics& metrics);

 private:
  struct Samples {
    std::string name;  // of a part of the data; empty: of all
    MicroBatches batches;
    std::unique_ptr<PipelineExecutor> executor;
    int64_t steps;  // of one evaluation
  };
  std::unique_ptr<Samples> make_samples(
      std::string name,
      std::shared_ptr<const SampleSource> source);
  // std::nullopt where a rank asked the run to stop before the last batch.
  std::optional<TokenLoss> loss_over(Samples& samples);

  const TrainConfig& config_;
  const ProcessMesh& mesh_;
  TrainStep& step_;
  Hooks hooks_;
  std::unique_ptr<Samples> all_;
  // One for each part of a mixture, with dataset.eval_parts.
  std::vector<std::unique_ptr<Samples>> parts_;
  bool stop_ = false;  // asked for, the same on all ranks
};

}  // namespace brigade

// From the loader's batches to the tensors that a rank's stages read, on their
// device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "brigade/config/train_config.h"
#include "brigade/data/loader.h"
#include "brigade/model/model_context.h"

namespace brigade {

class MicroBatches {
 public:
  MicroBatches(
      std::shared_ptr<const SampleSource> source,
      const TrainConfig& config,
      const Coordinate& coordinate,
      torch::Device device = torch::kCPU);

  // Takes the next step's micro-batches from the loader.
  void load_step();
  // Continues with the samples from `sample` on.
  void seek_sample(int64_t sample) {
    loader_.seek_sample(static_cast<uint64_t>(sample));
  }

  const MicroBatch& operator[](int micro_batch) const {
    return batches_[static_cast<size_t>(micro_batch)];
  }
  // What the loss is a mean over, in the step's micro-batches on this rank:
  // targets that have a loss; with a loss of pairs, the pairs, whose number the
  // first of the ranks that share the sequences says.
  int64_t loss_tokens() const { return loss_tokens_; }
  // int64 [T / cp] on the device: the place in the sequence of each local
  // token.
  const torch::Tensor& positions() const { return positions_on_device_; }

 private:
  MicroBatch to_tensors(const Batch& batch);
  // MicroBatch::token_keys of the whole sequences: a function of the seed and
  // of each token's place among the run's samples.
  std::vector<int64_t> token_keys(const Batch& batch) const;

  Loader loader_;
  int64_t count_;  // micro-batches a step
  torch::Device device_;
  torch::Tensor positions_;  // on the CPU
  torch::Tensor positions_on_device_;
  bool is_cut_;  // over cp
  double distill_weight_;
  bool are_pairs_;
  bool counts_pairs_;
  bool drops_;  // some inputs of adapters
  uint64_t seed_;
  std::vector<MicroBatch> batches_;
  int64_t loss_tokens_ = 0;
};

}  // namespace brigade

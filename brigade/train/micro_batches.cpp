#include "brigade/train/micro_batches.h"

#include <utility>

#include "brigade/base/hash.h"
#include "brigade/comm/device_stream.h"
#include "brigade/run/run_options.h"
#include "brigade/topology/sequence_partition.h"

namespace brigade {
namespace {

// A copy of values in row-major order.
template <typename T>
torch::Tensor as_tensor(
    const std::vector<T>& values,
    const std::vector<int64_t>& sizes) {
  return torch::from_blob(
             const_cast<T*>(values.data()),
             sizes,
             c10::CppTypeToScalarType<T>::value)
      .clone();
}

}  // namespace

MicroBatches::MicroBatches(
    std::shared_ptr<const SampleSource> source,
    const TrainConfig& config,
    const Coordinate& coordinate,
    torch::Device device)
    : loader_(std::move(source), loader_options(config, coordinate)),
      count_(config.training.gradient_accumulation_steps),
      device_(device),
      is_cut_(config.distributed.dims.sequence_parts() > 1),
      distill_weight_(config.training.loss.distill_weight),
      are_pairs_(config.training.loss.is_of_pairs()),
      counts_pairs_(
          are_pairs_ &&
          config.distributed.dims.place(kSequenceAxes, coordinate) == 0),
      drops_(config.adapter.dropout > 0),
      seed_(static_cast<uint64_t>(config.training.seed)) {
  const auto positions = token_positions(
      config.training.seq_length, config.distributed.dims, coordinate);
  positions_ = torch::tensor(positions, torch::kLong);
  positions_on_device_ = to_device(positions_, device_);
}

void MicroBatches::load_step() {
  batches_.clear();
  loss_tokens_ = 0;
  for (int64_t i = 0; i < count_; ++i)
    batches_.push_back(to_tensors(loader_.next()));
}

std::vector<int64_t> MicroBatches::token_keys(const Batch& batch) const {
  const uint64_t of_seed = mix_bits(seed_);
  const auto count = static_cast<uint64_t>(batch.rows * batch.seq_length);
  const uint64_t first =
      batch.first_sample * static_cast<uint64_t>(batch.seq_length);
  std::vector<int64_t> keys;
  for (uint64_t token = first; token < first + count; ++token)
    keys.push_back(static_cast<int64_t>(mix_bits(of_seed + token)));
  return keys;
}

MicroBatch MicroBatches::to_tensors(const Batch& batch) {
  const auto local = [&](const std::vector<int64_t>& values) {
    auto whole = as_tensor(values, {batch.rows, batch.seq_length});
    return is_cut_ ? whole.index_select(1, positions_) : whole;
  };
  MicroBatch result;
  result.ids = to_device(local(batch.inputs), device_);
  const torch::Tensor targets = local(batch.targets);
  if (counts_pairs_)
    loss_tokens_ += batch.rows / 2;
  else if (!are_pairs_)
    loss_tokens_ += (targets != kNoTarget).sum().item<int64_t>();
  result.targets = to_device(targets, device_);
  if (!batch.reference.empty())
    result.reference =
        to_device(torch::tensor(batch.reference, torch::kDouble), device_);
  if (drops_)
    result.token_keys =
        to_device(local(token_keys(batch)).contiguous(), device_);
  if (const int64_t k = batch.teacher.k; k > 0) {
    const std::vector<int64_t> sizes = {batch.rows, batch.seq_length, k};
    const auto local_rows = [&](torch::Tensor whole) {
      if (is_cut_)
        whole = whole.index_select(1, positions_);
      return to_device(whole.reshape({-1, k}), device_);
    };
    result.teacher = ops::SoftTargets{
        .ids = local_rows(as_tensor(batch.teacher.ids, sizes)),
        .log_probs = local_rows(as_tensor(batch.teacher.log_probs, sizes)),
        .weight = distill_weight_};
  }
  if (!batch.position_ids.empty()) {
    // A token's place in the sequence minus its place in its document.
    result.document_starts = to_device(
        (positions_.unsqueeze(0) - local(batch.position_ids)).contiguous(),
        device_);
  }
  return result;
}

}  // namespace brigade

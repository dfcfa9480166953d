// Batch normalisation over the batches of all ranks, as
// torch.nn.SyncBatchNorm: a rank's batch may be too small to normalise by.
//
//   auto norm = brigade::SyncBatchNorm(64, world.data_parallel());
//
// In place of torch::nn::BatchNorm1d, 2d and 3d, whose parameters, buffers and
// results it has: with training on, the mean and variance of each channel are
// those of all ranks together (Ioffe and Szegedy 2015), and so are the
// gradients of the input; weight and bias get this rank's gradients, which data
// parallelism reduces as any other.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <utility>

#include "brigade/comm/communicator.h"

namespace brigade {

// The module behind SyncBatchNorm.
class SyncBatchNormImpl : public torch::nn::Module {
 public:
  SyncBatchNormImpl(
      int64_t channels,
      CommunicatorPtr communicator,
      const torch::nn::BatchNormOptions& options);
  SyncBatchNormImpl(int64_t channels, CommunicatorPtr communicator)
      : SyncBatchNormImpl(
            channels,
            std::move(communicator),
            torch::nn::BatchNormOptions(channels)) {}

  // x: [N, C] or [N, C, ...], N each rank's own. Collective while training: one
  // all-reduce of 2 C + 1 doubles, and one of 2 C in backward. Throws
  // ConfigError for another shape, or when all ranks together have one value
  // per channel.
  torch::Tensor forward(const torch::Tensor& x);

  // Its tensors lie in the memory of another layer's from now on.
  void share(
      const torch::Tensor& other_weight,
      const torch::Tensor& other_bias,
      const torch::Tensor& other_mean,
      const torch::Tensor& other_var,
      const torch::Tensor& other_count);

  torch::Tensor weight, bias;               // [C]; undefined: not affine
  torch::Tensor running_mean, running_var;  // [C]; undefined: not tracked
  torch::Tensor num_batches_tracked;        // int64 []

 private:
  torch::nn::BatchNormOptions options_;
  CommunicatorPtr communicator_;
};
// A shared handle of SyncBatchNormImpl, as libtorch's modules have.
TORCH_MODULE(SyncBatchNorm);

// The same layer over all ranks: with the options, parameters and buffers of
// `norm` (a BatchNorm1d, 2d or 3d), whose memory they share.
template <typename Norm>
SyncBatchNorm make_sync_batch_norm(
    const Norm& norm,
    const CommunicatorPtr& communicator) {
  SyncBatchNorm sync(norm.options.num_features(), communicator, norm.options);
  sync->share(
      norm.weight,
      norm.bias,
      norm.running_mean,
      norm.running_var,
      norm.num_batches_tracked);
  return sync;
}

// A Sequential of the same layers, its BatchNorms over all ranks. Layers that
// hold BatchNorms as members of their own type have to name SyncBatchNorm
// there: C++ cannot replace a typed member.
torch::nn::Sequential convert_sync_batch_norm(
    const torch::nn::Sequential& layers,
    const CommunicatorPtr& communicator);

}  // namespace brigade

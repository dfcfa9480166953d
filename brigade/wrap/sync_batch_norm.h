// Batch normalisation over the batches of all ranks, as
// torch.nn.SyncBatchNorm: a rank's batch may be too small to normalise by.
//
//   auto norm = brigade::SyncBatchNorm(64, world.data_parallel());
//
// It replaces torch::nn::BatchNorm1d, 2d and 3d, and has their parameters,
// buffers and results. In training the mean and variance of each channel are
// those of all ranks together (Ioffe and Szegedy 2015), and so are the
// gradients of the input; weight and bias get this rank's gradients, which data
// parallelism reduces as any other. Gradients can be differentiated again
// (create_graph), any number of times.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "brigade/comm/communicator.h"

namespace brigade {

// What a batch normalisation consists of.
struct BatchNormTensors {
  torch::Tensor weight, bias;               // [C]; undefined: not affine
  torch::Tensor running_mean, running_var;  // [C]; undefined: not tracked
  torch::Tensor num_batches_tracked;        // int64 []
};

// The module behind SyncBatchNorm.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl>,
                          public BatchNormTensors {
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
  // Uses these tensors themselves: frozen ones stay frozen.
  SyncBatchNormImpl(
      const BatchNormTensors& tensors,
      CommunicatorPtr communicator,
      const torch::nn::BatchNormOptions& options);

  // x: [N, C] or [N, C, ...]; ranks may differ in N. Collective in training:
  // one all-reduce of 2 C + 1 doubles, and one of 2 C in backward. In eval()
  // without running statistics each rank takes those of its own batch. Throws
  // UsageError for another shape, or when all ranks together have one value per
  // channel.
  torch::Tensor forward(const torch::Tensor& x);

  // Replaces its tensors by new ones. clone() calls it, and copies values; the
  // copy has the same communicator.
  void reset() override;

 private:
  void register_tensors(const BatchNormTensors& tensors);

  torch::nn::BatchNormOptions options_;
  CommunicatorPtr communicator_;
};
// A shared handle of SyncBatchNormImpl, as libtorch's modules have.
TORCH_MODULE(SyncBatchNorm);

// Makes the same layer over all ranks, with the options, parameters, buffers
// and mode (train() or eval()) of `norm`, a BatchNorm1d, 2d or 3d.
template <typename Norm>
SyncBatchNorm make_sync_batch_norm(
    const Norm& norm,
    const CommunicatorPtr& communicator) {
  SyncBatchNorm sync(
      BatchNormTensors{
          norm.weight,
          norm.bias,
          norm.running_mean,
          norm.running_var,
          norm.num_batches_tracked},
      communicator,
      norm.options);
  sync->train(norm.is_training());
  return sync;
}

// Replaces the BatchNorms of all Sequentials in `module`, at any depth and
// itself included, by SyncBatchNorms of the same names. Throws UsageError, and
// changes nothing, if another module holds a BatchNorm: C++ cannot replace a
// typed member, which has to be a SyncBatchNorm from the start.
void convert_sync_batch_norm(
    torch::nn::Module& module,
    const CommunicatorPtr& communicator);

// The same, but returns the handle, a Sequential or another ModuleHolder or a
// std::shared_ptr, so that it can be used in an expression.
template <
    typename Handle,
    typename = std::enable_if_t<
        !std::is_base_of_v<torch::nn::Module, std::remove_cvref_t<Handle>>>>
Handle convert_sync_batch_norm(
    Handle module,
    const CommunicatorPtr& communicator) {
  convert_sync_batch_norm(
      static_cast<torch::nn::Module&>(*module), communicator);
  return module;
}

}  // namespace brigade

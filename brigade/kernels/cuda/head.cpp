#include "brigade/kernels/cuda/head.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "brigade/kernels/aten/wide.h"
#include "brigade/kernels/cuda/launch.h"

namespace brigade::ops {
namespace {

class CudaHeadChunk final : public HeadChunk {
 public:
  CudaHeadChunk(const HeadInputs& inputs, const HeadStatistics& statistics)
      : hidden_(inputs.hidden),
        weight_(inputs.weight.narrow(0, 0, inputs.valid_rows)),
        targets_(inputs.targets.contiguous()),
        statistics_(statistics),
        logits_(wide_product(inputs.hidden, weight_.t()).contiguous()) {
    const c10::cuda::CUDAGuard guard(logits_.device());
    cuda::launch_head_rows(
        {.logits = logits_.const_data_ptr<float>(),
         .targets = targets_.const_data_ptr<int64_t>(),
         .maxima = statistics.maxima.data_ptr<float>(),
         .sums = statistics.sums[0].data_ptr<float>(),
         .target_logits = statistics.sums[1].data_ptr<float>(),
         .rows = logits_.size(0),
         .columns = logits_.size(1)},
        stream());
    own_maxima_ = statistics.maxima.clone();
  }

  void sum_exponentials() override {
    // 1 where no other rank has a larger logit.
    statistics_.sums[0].mul_(at::exp(own_maxima_ - statistics_.maxima));
  }

  void add_gradients(const Tensor& factor, Tensor dhidden, Tensor dweight)
      override {
    const bool is_wide = hidden_.scalar_type() == torch::kFloat;
    const Tensor gradient =
        is_wide ? logits_ : at::empty(logits_.sizes(), hidden_.options());
    const Tensor factors = factor.contiguous();
    {
      const c10::cuda::CUDAGuard guard(logits_.device());
      cuda::launch_head_gradient(
          is_wide ? cuda::Element::kFloat : cuda::Element::kBFloat16,
          {.logits = logits_.const_data_ptr<float>(),
           .targets = targets_.const_data_ptr<int64_t>(),
           .maxima = statistics_.maxima.const_data_ptr<float>(),
           .sums = statistics_.sums[0].const_data_ptr<float>(),
           .factor = factors.const_data_ptr<float>(),
           .gradient = gradient.data_ptr(),
           .rows = logits_.size(0),
           .columns = logits_.size(1)},
          stream());
    }
    add_head_products(
        gradient, {.hidden = hidden_, .weight = weight_}, dhidden, dweight);
  }

 private:
  CUstream_st* stream() const {
    return c10::cuda::getCurrentCUDAStream(logits_.device().index()).stream();
  }

  Tensor hidden_;
  Tensor weight_;   // without padding
  Tensor targets_;  // int64 [rows]
  HeadStatistics statistics_;
  Tensor logits_;      // float32 [rows, valid_rows]
  Tensor own_maxima_;  // of this rank's part of the vocabulary
};

}  // namespace

std::unique_ptr<HeadChunk> make_cuda_head_chunk(
    const HeadInputs& inputs,
    const HeadStatistics& statistics) {
  return std::make_unique<CudaHeadChunk>(inputs, statistics);
}

}  // namespace brigade::ops

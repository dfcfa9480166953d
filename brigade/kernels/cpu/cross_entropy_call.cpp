// The fused head and cross-entropy, a chunk of tokens at a time: in bf16
// without logits in memory, in float32 by products and a softmax over whole
// rows.
#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "brigade/kernels/cpu/cpu_kernels.h"
#include "brigade/kernels/cpu/cross_entropy_kernel.h"
#include "brigade/kernels/cpu/cross_entropy_tile.h"
#include "brigade/kernels/cpu/elements.h"
#include "brigade/kernels/cpu/product.h"
#include "brigade/kernels/cpu/scratch.h"

namespace brigade::ops {
namespace {

constexpr int64_t kFloatRowChunk = 256;
constexpr int64_t kFusedRowChunk = 1024;

// Tokens whose logits are kept at once: each chunk adds to the whole weight's
// gradient, so that 128 take a tenth longer than 256, and 1,024 a twentieth
// less. Part of all tokens, so that they grow with what else is kept of these.
int64_t kept_row_chunk(int64_t tokens) {
  constexpr int64_t kPart = 4;
  return std::clamp<int64_t>(round_up(tokens / kPart, kPanel), 256, 1024);
}

bool keeps_logits(KeepLogits wanted) {
  return wanted == KeepLogits::kAlways ||
         (wanted == KeepLogits::kWhereQuicker && quicker_to_keep_logits());
}

// bf16 rows of some width are what the fused kernel takes.
bool is_fused(torch::ScalarType dtype, int64_t columns) {
  return dtype == torch::kBFloat16 && columns > 0;
}

// A chunk's float32 logits, in memory that stays mapped: with a vocabulary
// above 32,768 they are larger than what the C allocator keeps. One chunk at a
// time.
Tensor in_scratch(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const auto bytes =
      static_cast<size_t>(c10::multiply_integers(sizes)) * sizeof(float);
  return at::from_blob(scratch(ScratchSlot::kLogits, bytes), sizes, options);
}

// Makes the logits of a chunk, and a float32 softmax in their place.
class FloatChunk final : public HeadChunk {
 public:
  FloatChunk(const HeadInputs& inputs, const HeadStatistics& statistics)
      : inputs_(inputs), statistics_(statistics) {
    const Tensor& x = inputs.hidden;
    const Tensor& weight = inputs.weight;
    logits_ = in_scratch({x.size(0), weight.size(0)}, x.options());
    product(x, weight.t(), logits_);
    if (inputs.valid_rows < weight.size(0))
      logits_.narrow(1, inputs.valid_rows, weight.size(0) - inputs.valid_rows)
          .fill_(-std::numeric_limits<float>::infinity());
    Tensor(statistics.maxima)
        .copy_(
            inputs.valid_rows > 0
                ? logits_.amax(1)
                : at::full_like(
                      statistics.maxima,
                      -std::numeric_limits<double>::infinity()));
    mine_ = inputs.targets >= 0;
    index_ = inputs.targets.clamp_min(0).unsqueeze(1);
    // Masked, not multiplied: a rank of padding alone has -infinity here.
    statistics.sums[1].copy_(
        weight.size(0) > 0 ? logits_.gather(1, index_).squeeze(1).masked_fill(
                                 mine_.logical_not(), 0)
                           : at::zeros_like(statistics.maxima));
  }

  void sum_exponentials() override {
    auto* rows = data<float>(logits_);
    const auto* maxima = data<float>(statistics_.maxima);
    auto* sums = data<float>(statistics_.sums);
    const int64_t columns = logits_.size(1);
    at::parallel_for(0, logits_.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        sums[row] = exp_row(rows + row * columns, columns, maxima[row]);
    });
  }

  void add_gradients(const Tensor& factor, Tensor dhidden, Tensor dweight)
      override {
    logits_.mul_((factor / statistics_.sums[0]).unsqueeze(1));
    if (logits_.size(1) > 0)
      logits_.scatter_add_(1, index_, (-factor * mine_).unsqueeze(1));
    const KernelSet& kernels = cpu_kernels();
    if (dhidden.defined())
      kernels.linear_input_grad(dhidden, logits_, inputs_.weight);
    if (dweight.defined())
      kernels.linear_weight_grad(dweight, logits_, inputs_.hidden);
  }

 private:
  HeadInputs inputs_;
  HeadStatistics statistics_;
  Tensor logits_;
  Tensor mine_;
  Tensor index_;
};

// The same by the fused bf16 kernel, without logits in memory.
class FusedChunk final : public HeadChunk {
 public:
  FusedChunk(const HeadInputs& inputs, const HeadStatistics& statistics)
      : inputs_(inputs),
        statistics_(statistics),
        shape_{
            .tokens = inputs.hidden.size(0),
            .columns = inputs.hidden.size(1),
            .vocabulary = inputs.valid_rows,
            .hidden = data<uint16_t>(inputs.hidden),
            .hidden_stride = inputs.hidden.stride(0),
            .weight = data<uint16_t>(inputs.weight),
            .weight_stride = inputs.weight.stride(0),
            .target = data<int64_t>(inputs_.targets)} {
    own_sums_ = at::empty_like(statistics.maxima);
    if (keeps_logits(inputs.keep_logits))
      kept_ = kept_logits(shape_);
    head_statistics(
        shape_,
        {.maximum = data<float>(statistics.maxima),
         .sum = data<float>(own_sums_),
         .target_logit = data<float>(statistics.sums[1])},
        kept_);
    own_maxima_ = statistics.maxima.clone();
  }

  void sum_exponentials() override {
    // Relative to the group's maxima instead of this rank's own.
    statistics_.sums[0].copy_(
        own_sums_ * (own_maxima_ - statistics_.maxima).exp());
  }

  void add_gradients(const Tensor& factor, Tensor dhidden, Tensor dweight)
      override {
    const Tensor lse = statistics_.maxima + statistics_.sums[0].log();
    head_gradients(
        shape_,
        {.lse = data<float>(lse),
         .factor = data<float>(factor),
         .target_logit = data<float>(statistics_.sums[1]),
         .dhidden = dhidden.defined() ? data<uint16_t>(dhidden) : nullptr,
         .dweight = dweight.defined() ? data<float>(dweight) : nullptr},
        kept_);
  }

 private:
  HeadInputs inputs_;
  HeadStatistics statistics_;
  HeadShape shape_;
  Tensor own_sums_;
  Tensor own_maxima_;
  std::optional<KeptLogits> kept_;
};

}  // namespace

// A shared head's ranks must cut alike, on whatever machines they are: by sizes
// alone. That is how processors without AMX always cut; with AMX chunks of a
// shared head are smaller (from 256 tokens on, not 1,024) than would be
// quickest.
int64_t CpuKernels::head_rows_at_once(const HeadSize& size) const {
  if (size.needs_aten)
    return aten_kernels().head_rows_at_once(size);
  if (!is_fused(size.dtype, size.columns))
    return kFloatRowChunk;
  const bool small = size.is_shared || keeps_logits(size.keep_logits);
  return size.wants_gradients && small ? kept_row_chunk(size.tokens)
                                       : kFusedRowChunk;
}

std::unique_ptr<HeadChunk> CpuKernels::make_head_chunk(
    const HeadInputs& inputs,
    const HeadStatistics& statistics) const {
  // Soft-capped logits and teachers have no kernel of their own.
  if (inputs.logit_soft_cap || inputs.teacher)
    return aten_kernels().make_head_chunk(inputs, statistics);
  if (is_fused(inputs.hidden.scalar_type(), inputs.hidden.size(1)))
    return std::make_unique<FusedChunk>(inputs, statistics);
  return std::make_unique<FloatChunk>(inputs, statistics);
}

}  // namespace brigade::ops

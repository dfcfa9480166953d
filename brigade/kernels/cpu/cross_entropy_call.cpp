// The fused head and cross-entropy, a chunk of tokens at a time: in bf16
// without logits in memory, in float32 by products and a softmax over whole
// rows.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "brigade/kernels/cpu/cpu_kernels.h"
#include "brigade/kernels/cpu/cross_entropy_kernel.h"
#include "brigade/kernels/cpu/cross_entropy_tile.h"
#include "brigade/kernels/cpu/elements.h"
#include "brigade/kernels/cpu/product.h"
#include "brigade/kernels/cpu/scratch.h"
#include "brigade/ops/soft_targets.h"

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

// The rows that a teacher names of each token, then the target where it is none
// of them; one column without a teacher. int64 [rows, k + 1], -1: none of this
// weight.
Tensor named_rows(const HeadInputs& inputs) {
  const Tensor target = inputs.targets.unsqueeze(1);
  if (!inputs.teacher)
    return target.contiguous();
  const Tensor& ids = inputs.teacher->ids;
  const Tensor is_named = (ids == target).any(1, /*keepdim=*/true);
  return at::cat({ids, target.masked_fill(is_named, -1)}, 1);
}

// The same by the fused bf16 kernel, without logits in memory but those of the
// entries that the loss names.
class FusedChunk final : public HeadChunk {
 public:
  FusedChunk(const HeadInputs& inputs, const HeadStatistics& statistics)
      : inputs_(inputs),
        statistics_(statistics),
        named_(named_rows(inputs)),
        entries_(
            {data<int64_t>(named_), static_cast<size_t>(named_.numel())},
            named_.size(0),
            named_.size(1) - 1),
        shape_{
            .tokens = inputs.hidden.size(0),
            .columns = inputs.hidden.size(1),
            .vocabulary = inputs.valid_rows,
            .hidden = data<uint16_t>(inputs.hidden),
            .hidden_stride = inputs.hidden.stride(0),
            .weight = data<uint16_t>(inputs.weight),
            .weight_stride = inputs.weight.stride(0),
            .entries = &entries_} {
    own_sums_ = at::empty_like(statistics.maxima);
    own_maxima_ = at::empty_like(statistics.maxima);
    named_logits_ = at::zeros(named_.sizes(), own_sums_.options());
    if (keeps_logits(inputs.keep_logits))
      kept_ = kept_logits(shape_);
    head_statistics(
        shape_,
        {.maximum = data<float>(own_maxima_),
         .sum = data<float>(own_sums_),
         .entry_logits = data<float>(named_logits_)},
        kept_);
    Tensor(statistics.maxima).copy_(own_maxima_);
    Tensor target_logit = statistics.sums[1];
    target_logit.copy_(named_logits_.select(1, named_.size(1) - 1));
    if (!inputs.teacher)
      return;
    support_ = named_.narrow(1, 0, named_.size(1) - 1);
    is_elsewhere_ = support_ < 0;
    is_target_ = (support_ == inputs.targets.unsqueeze(1))
                     .masked_fill(is_elsewhere_, false);
    probs_ = inputs.teacher->log_probs.exp().masked_fill(is_elsewhere_, 0);
    target_logit.add_(
        support_logits().masked_fill(is_target_.logical_not(), 0).sum(1));
    Tensor(statistics.maxima)
        .copy_(own_maxima_.maximum(
            support_logits()
                .masked_fill(
                    is_elsewhere_, -std::numeric_limits<float>::infinity())
                .amax(1)));
  }

  void sum_exponentials() override {
    // Relative to the group's maxima instead of this rank's own.
    statistics_.sums[0].copy_(
        own_sums_ * (own_maxima_ - statistics_.maxima).exp());
    if (!inputs_.teacher)
      return;
    const Tensor shifted = support_logits() - statistics_.maxima.unsqueeze(1);
    statistics_.sums[3].copy_(statistics_.sums[0]);
    statistics_.sums[2].copy_((probs_ * shifted).sum(1));
    statistics_.sums[0].add_(
        shifted.exp().masked_fill(is_elsewhere_, 0).sum(1));
  }

  void add_gradients(const Tensor& factor, Tensor dhidden, Tensor dweight)
      override {
    const Tensor lse = statistics_.maxima + statistics_.sums[0].log();
    // The factor of all that no teacher names.
    const Tensor of_others =
        inputs_.teacher
            ? factor * factor_outside(*inputs_.teacher, statistics_.sums)
            : factor;
    const Tensor of_named = inputs_.teacher
                                ? taught_gradients(lse, factor, of_others)
                                : target_gradients(lse, factor);
    head_gradients(
        shape_,
        {.lse = data<float>(lse),
         .factor = data<float>(of_others),
         .entry_gradients = data<float>(of_named),
         .dhidden = dhidden.defined() ? data<uint16_t>(dhidden) : nullptr,
         .dweight = dweight.defined() ? data<float>(dweight) : nullptr},
        kept_);
  }

 private:
  Tensor support_logits() const {
    return named_logits_.narrow(1, 0, named_.size(1) - 1);
  }

  // Number by number: what libtorch's vectors make of exp() depends on the
  // machine.
  Tensor target_gradients(const Tensor& lse, const Tensor& factor) const {
    Tensor gradients = at::empty_like(named_logits_);
    const auto* logit = data<float>(named_logits_);
    const auto* of_lse = data<float>(lse);
    const auto* of_factor = data<float>(factor);
    auto* gradient = data<float>(gradients);
    for (int64_t i = 0; i < gradients.numel(); ++i) {
      const float p = std::exp(logit[i] - of_lse[i]);
      gradient[i] = of_factor[i] * (p - 1.0F);
    }
    return gradients;
  }

  // With a teacher: q - w p in its support, and 1 - w less at the target.
  Tensor taught_gradients(
      const Tensor& lse,
      const Tensor& factor,
      const Tensor& of_others) const {
    const double share = inputs_.teacher->weight;
    const Tensor q = (named_logits_ - lse.unsqueeze(1)).exp();
    const int64_t k = support_.size(1);
    const Tensor of_support =
        (q.narrow(1, 0, k) - share * probs_ - (1 - share) * is_target_) *
        factor.unsqueeze(1);
    const Tensor of_target = q.select(1, k) * of_others - (1 - share) * factor;
    return at::cat({of_support, of_target.unsqueeze(1)}, 1);
  }

  HeadInputs inputs_;
  HeadStatistics statistics_;
  Tensor named_;  // as named_rows() says
  HeadEntries entries_;
  HeadShape shape_;
  Tensor named_logits_;  // 0 where named_ is -1
  // Over all rows but a teacher's.
  Tensor own_sums_;
  Tensor own_maxima_;
  // A teacher's tokens, [rows, k]; undefined without one.
  Tensor support_;
  Tensor is_elsewhere_;
  Tensor is_target_;
  Tensor probs_;  // 0 elsewhere
  std::optional<KeptLogits> kept_;
};

}  // namespace

// Ranks that share a head must cut at the same rows on any machine: by sizes
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
  const bool fused =
      is_fused(inputs.hidden.scalar_type(), inputs.hidden.size(1));
  // Soft-capped logits have no kernel of their own, nor in float32 a teacher.
  if (inputs.logit_soft_cap || (inputs.teacher && !fused))
    return aten_kernels().make_head_chunk(inputs, statistics);
  if (fused)
    return std::make_unique<FusedChunk>(inputs, statistics);
  return std::make_unique<FloatChunk>(inputs, statistics);
}

}  // namespace brigade::ops

// The fused head and cross-entropy by ATen calls: the logits of a chunk of
// tokens at a time.
#include <limits>
#include <memory>

#include "brigade/kernels/aten/wide.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/libtorch_versions.h"
#include "brigade/ops/soft_targets.h"

namespace brigade::ops {
namespace {

constexpr int64_t kRowChunk = 256;

class AtenHeadChunk final : public HeadChunk {
 public:
  AtenHeadChunk(const HeadInputs& inputs, const HeadStatistics& statistics)
      : inputs_(inputs), statistics_(statistics) {
    weight_ = inputs.weight.narrow(0, 0, inputs.valid_rows);
    logits_ = wide_product(inputs.hidden, weight_.t());
    if (inputs.logit_soft_cap) {
      const double cap = *inputs.logit_soft_cap;
      logits_.div_(cap).tanh_();
      slope_ = 1 - logits_.square();
      logits_.mul_(cap);
    }
    Tensor target_logit = statistics.sums[1];
    if (inputs.valid_rows == 0) {  // padding alone
      Tensor(statistics.maxima).fill_(-std::numeric_limits<double>::infinity());
      target_logit.zero_();
      return;
    }
    Tensor(statistics.maxima).copy_(logits_.amax(1));
    is_mine_ = inputs.targets >= 0;
    index_ = inputs.targets.clamp_min(0).unsqueeze(1);
    target_logit.copy_(logits_.gather(1, index_).squeeze(1).masked_fill(
        is_mine_.bitwise_not(), 0));
    if (inputs.teacher)
      find_support(*inputs.teacher);
  }

  void sum_exponentials() override {
    logits_.sub_(statistics_.maxima.unsqueeze(1));
    if (support_.defined())
      statistics_.sums[2].copy_(
          (logits_.gather(1, support_) * support_probs_).sum(1));
    logits_.exp_();
    statistics_.sums[0].copy_(logits_.sum(1));
    if (support_.defined())
      statistics_.sums[3].copy_(logits_.masked_fill(is_support_, 0).sum(1));
    else if (inputs_.teacher)  // padding alone
      statistics_.sums.narrow(0, 2, 2).zero_();
  }

  void add_gradients(const Tensor& factor, Tensor dhidden, Tensor dweight)
      override {
    logits_.mul_((factor / statistics_.sums[0]).unsqueeze(1));
    Tensor of_target = -factor;
    if (support_.defined()) {
      const SoftTargets& teacher = *inputs_.teacher;
      logits_.mul_(factor_outside(teacher, statistics_.sums)
                       .unsqueeze(1)
                       .masked_fill(is_support_, 1));
      logits_.scatter_add_(
          1,
          support_,
          support_probs_ * (factor * -teacher.weight).unsqueeze(1));
      of_target = of_target * (1 - teacher.weight);
    }
    if (inputs_.valid_rows > 0)
      logits_.scatter_add_(1, index_, (of_target * is_mine_).unsqueeze(1));
    if (slope_.defined())
      logits_.mul_(slope_);
    // On the CPU libtorch would round the partial sums of a narrow product.
    add_head_products(
        logits_.is_cpu() ? logits_ : logits_.to(inputs_.hidden.scalar_type()),
        {.hidden = inputs_.hidden, .weight = weight_},
        dhidden,
        dweight);
  }

 private:
  void find_support(const SoftTargets& teacher) {
    const Tensor elsewhere = teacher.ids < 0;
    support_ = teacher.ids.clamp_min(0);
    support_probs_ = teacher.log_probs.to(logits_.scalar_type())
                         .exp()
                         .masked_fill(elsewhere, 0);
    // A column more, for the tokens of other ranks.
    const int64_t columns = logits_.size(1);
    is_support_ =
        at::zeros(
            {logits_.size(0), columns + 1}, logits_.options().dtype(at::kBool))
            .scatter_(1, teacher.ids.masked_fill(elsewhere, columns), true)
            .narrow(1, 0, columns);
  }

  HeadInputs inputs_;
  HeadStatistics statistics_;
  Tensor weight_;   // without padding
  Tensor logits_;   // then exponentials, then their gradients
  Tensor slope_;    // of the soft cap at each logit; undefined: no cap
  Tensor is_mine_;  // bool [rows]
  Tensor index_;    // int64 [rows, 1]
  // A teacher's tokens, of which those of other ranks have no probability;
  // undefined without a teacher or where all is padding.
  Tensor support_;        // int64 [rows, k]
  Tensor support_probs_;  // wide [rows, k]
  Tensor is_support_;     // bool [rows, valid_rows]
};

}  // namespace

void add_head_products(
    const Tensor& gradient,
    const HeadProducts& of,
    Tensor dhidden,
    Tensor dweight) {
  if (dhidden.defined())
    dhidden.copy_(
        gradient.scalar_type() == of.weight.scalar_type()
            ? at::mm(gradient, of.weight)
            : wide_product(gradient, of.weight));
  if (!dweight.defined())
    return;
  const Tensor rows = dweight.narrow(0, 0, of.weight.size(0));
  if (!add_product_in_float32(rows, gradient.t(), of.hidden))
    Tensor(rows).add_(wide_product(gradient.t(), of.hidden));
}

int64_t KernelSet::head_rows_at_once(const HeadSize&) const {
  return kRowChunk;
}

std::unique_ptr<HeadChunk> KernelSet::make_head_chunk(
    const HeadInputs& inputs,
    const HeadStatistics& statistics) const {
  return std::make_unique<AtenHeadChunk>(inputs, statistics);
}

}  // namespace brigade::ops

#include "brigade/ops/embedding.h"

#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/observed.h"
#include "brigade/ops/once_differentiable.h"

namespace brigade::ops {
namespace {

constexpr const char* kEmbeddingOp = "embedding";

[[noreturn]] void throw_outside(const Tensor& flat, int64_t vocab) {
  const Tensor outside = (flat < 0) | (flat >= vocab);
  const auto token = outside.to(torch::kInt).argmax().item<int64_t>();
  throw DataError(fmt::format(
      "[embedding] token {} is id {}, outside the vocabulary of {}; was the "
      "data made by another tokenizer?",
      token,
      flat[token].item<int64_t>(),
      vocab));
}

void check_embedding(const Tensor& ids, const Tensor& weight) {
  require(
      ids.scalar_type() == torch::kLong && weight.dim() == 2,
      kEmbeddingOp,
      "ids {} and weight {}: expected int64 and [V, C]",
      describe(ids),
      describe(weight));
  // Reading values of another device would wait for it.
  if (!ids.device().is_cpu() || ids.numel() == 0)
    return;
  const torch::NoGradGuard no_grad;
  const Tensor flat = ids.reshape({-1});
  if (flat.min().item<int64_t>() < 0 ||
      flat.max().item<int64_t>() >= weight.size(0))
    throw_outside(flat, weight.size(0));
}

struct EmbeddingSaved {
  WeightGrad weight_grad;
  const KernelSet* kernels;
};

struct EmbeddingNode : OnceDifferentiable<EmbeddingNode> {
  static constexpr const char* kName = "embedding";

  static Tensor forward(
      AutogradContext* context,
      const Tensor& weight,
      const Tensor& ids,
      const EmbeddingSaved& saved) {
    context->save_for_backward({weight, ids});
    carry(context, saved);
    return saved.kernels->embedding(weight, ids);
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    const auto tensors = context->get_saved_variables();
    const Tensor& weight = tensors[0];
    variable_list result(3);
    if (!gradients[0].defined() || !weight.requires_grad())
      return result;
    const EmbeddingSaved& saved = carried<EmbeddingSaved>(context);
    if (saved.weight_grad == WeightGrad::kAccumulate) {
      saved.kernels->embedding_weight_grad(
          accumulation_target(kEmbeddingOp, weight), tensors[1], gradients[0]);
      return result;
    }
    const Tensor sum =
        at::zeros(weight.sizes(), weight.options().dtype(wide_dtype(weight)));
    saved.kernels->embedding_weight_grad(sum, tensors[1], gradients[0]);
    result[0] = sum.to(weight.scalar_type());
    return result;
  }
};

}  // namespace

Tensor
embedding(const Tensor& ids, const Tensor& weight, const OpOptions& options) {
  check_embedding(ids, weight);
  if (options.weight_grad == WeightGrad::kAccumulate && weight.requires_grad())
    check_accumulates(kEmbeddingOp, weight);
  const Observed observed("brigade::embedding", weight, ids);
  return EmbeddingNode::apply(
      weight,
      ids,
      EmbeddingSaved{
          options.weight_grad,
          &choose_kernels(kEmbeddingOp, options.kernels, {&weight})});
}

}  // namespace brigade::ops

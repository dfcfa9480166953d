#include "brigade/ops/embedding.h"

#include "brigade/ops/describe.h"

namespace brigade::ops {
namespace {

constexpr const char* kOp = "embedding";

void check(const Tensor& ids, const Tensor& weight) {
  require(
      ids.scalar_type() == torch::kLong && weight.dim() == 2,
      kOp,
      "ids {} and weight {}: expected int64 and [V, C]",
      describe(ids),
      describe(weight));
  if (ids.numel() == 0)
    return;
  const auto flat = ids.reshape({-1});
  const auto outside = (flat < 0) | (flat >= weight.size(0));
  if (!outside.any().item<bool>())
    return;
  const auto index = outside.to(torch::kInt).argmax().item<int64_t>();
  throw DataError(fmt::format(
      "[embedding] token {} is id {}, outside the vocabulary of {}; was the "
      "data made by another tokenizer?",
      index,
      flat[index].item<int64_t>(),
      weight.size(0)));
}

}  // namespace

Tensor
embedding(const Tensor& ids, const Tensor& weight, WeightGrad weight_grad) {
  check(ids, weight);
  return torch::embedding(
      weight_grad == WeightGrad::kReturn ? weight : accumulating(kOp, weight),
      ids);
}

}  // namespace brigade::ops

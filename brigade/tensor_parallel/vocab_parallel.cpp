#include "brigade/tensor_parallel/vocab_parallel.h"

#include <algorithm>

#include "brigade/model_spec/shard.h"
#include "brigade/ops/cross_entropy.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/embedding.h"
#include "brigade/ops/linear.h"
#include "brigade/tensor_parallel/input_region.h"
#include "brigade/tensor_parallel/mappings.h"

namespace brigade {
namespace {

using torch::Tensor;

// The part of the vocabulary that this rank's rows are.
struct VocabRange {
  int64_t begin = 0;
  int64_t numel = 0;  // without padding; 0: padding alone
};

VocabRange vocab_range(
    const char* op,
    const TensorParallel& parallel,
    const Tensor& weight,
    int64_t vocab_size) {
  const int64_t rows = vocab_rows_per_rank(vocab_size, parallel.size());
  ops::require(
      weight.dim() == 2 && weight.size(0) == rows,
      op,
      "a vocabulary of {} over {} ranks has {} rows a rank, but the weight is "
      "{}",
      vocab_size,
      parallel.size(),
      rows,
      ops::describe(weight));
  const int64_t begin = std::min(parallel.rank() * rows, vocab_size);
  return {begin, std::min(rows, vocab_size - begin)};
}

void check_ids(const Tensor& ids, int64_t vocab_size) {
  ops::require(
      ids.scalar_type() == torch::kLong,
      "vocab_parallel_embedding",
      "ids must be int64, but are {}",
      ops::describe(ids));
  // Reading values of another device would wait for it.
  if (!ids.device().is_cpu())
    return;
  const Tensor flat = ids.reshape({-1});
  const Tensor outside = (flat < 0) | (flat >= vocab_size);
  if (flat.numel() == 0 || !outside.any().item<bool>())
    return;
  const auto index = outside.to(torch::kInt).argmax().item<int64_t>();
  throw DataError(fmt::format(
      "[vocab_parallel_embedding] token {} is id {}, outside the vocabulary of "
      "{}; was the data made by another tokenizer?",
      index,
      flat[index].item<int64_t>(),
      vocab_size));
}

}  // namespace

Tensor vocab_parallel_embedding(
    const TensorParallel& parallel,
    const Tensor& ids,
    const Tensor& weight,
    int64_t vocab_size,
    const ops::OpOptions& options) {
  const VocabRange mine =
      vocab_range("vocab_parallel_embedding", parallel, weight, vocab_size);
  check_ids(ids, vocab_size);
  const Tensor local =
      (parallel.tokens == TokenLayout::kSharded ? ids.reshape({-1}) : ids) -
      mine.begin;
  const Tensor elsewhere = (local < 0) | (local >= mine.numel);
  // Row 0 stands in for tokens of other ranks; the mask hides it, and hides it
  // from its gradient in backward.
  const Tensor part =
      ops::embedding(local.masked_fill(elsewhere, 0), weight, options)
          .masked_fill(elsewhere.unsqueeze(-1), 0);
  return leave_region(part, parallel);
}

Tensor vocab_parallel_cross_entropy(
    const TensorParallel& parallel,
    const Tensor& hidden,
    const Tensor& weight,
    const Tensor& targets,
    ops::CrossEntropyOptions options) {
  const VocabRange mine = vocab_range(
      "vocab_parallel_cross_entropy",
      parallel,
      weight,
      options.vocab_size.value_or(0));
  const auto reduce = [group = parallel.group](ReduceOp op) {
    return
        [group, op](Tensor& values) { group->all_reduce(values, op)->wait(); };
  };
  options.vocab_begin = mine.begin;
  options.valid_rows = mine.numel;
  options.reduce_max = reduce(ReduceOp::kMax);
  options.reduce_sum = reduce(ReduceOp::kSum);
  return ops::linear_cross_entropy(
      InputRegion(parallel).enter(hidden), weight, targets, options);
}

Tensor vocab_parallel_logits(
    const TensorParallel& parallel,
    const Tensor& hidden,
    const Tensor& weight,
    int64_t vocab_size,
    ops::Kernels kernels) {
  vocab_range("vocab_parallel_logits", parallel, weight, vocab_size);
  const Tensor part = ops::linear(
      copy_region(hidden, parallel.group),
      weight,
      {},
      {ops::WeightGrad::kReturn, kernels});
  return gather_region(part, parallel.group).narrow(-1, 0, vocab_size);
}

}  // namespace brigade

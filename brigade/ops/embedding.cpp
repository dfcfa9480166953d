#include "brigade/ops/embedding.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstring>

#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/rows.h"

namespace brigade::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOp = "embedding";
constexpr int64_t kGrain = 64;  // rows a task

[[noreturn]] void throw_outside(int64_t token, int64_t id, int64_t vocab) {
  throw DataError(fmt::format(
      "[embedding] token {} is id {}, outside the vocabulary of {}; was the "
      "data made by another tokenizer?",
      token,
      id,
      vocab));
}

void check(const Tensor& ids, const Tensor& weight) {
  require(
      ids.scalar_type() == torch::kLong && weight.dim() == 2,
      kOp,
      "ids {} and weight {}: expected int64 and [V, C]",
      describe(ids),
      describe(weight));
  const Tensor flat = ids.reshape({-1}).to(torch::kCPU);
  const int64_t* values = data<int64_t>(flat);
  const int64_t stride = flat.numel() > 1 ? flat.stride(0) : 1;
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const int64_t id = values[i * stride];
    if (id < 0 || id >= weight.size(0))
      throw_outside(i, id, weight.size(0));
  }
}

// target[id] += gradient row. Threads split the columns, so that rows of equal
// ids are added in the order of the tokens whatever the number of threads.
void add_rows(const Tensor& ids, const Tensor& gradient, Tensor target) {
  const Tensor flat = ids.reshape({-1}).contiguous();
  const Tensor rows = as_rows(gradient);
  const int64_t columns = target.size(1);
  const int64_t* id = data<int64_t>(flat);
  auto* to = data<float>(target);
  with_element_type(rows, [&](auto element) {
    using T = std::conditional_t<
        std::is_same_v<decltype(element), uint16_t>,
        c10::BFloat16,
        float>;
    const T* from = data<T>(rows);
    const int64_t stride = rows.stride(0);
    at::parallel_for(0, columns, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < flat.numel(); ++row) {
        float* sum = to + id[row] * columns;
        const T* value = from + row * stride;
        for (int64_t column = begin; column < end; ++column)
          sum[column] += static_cast<float>(value[column]);
      }
    });
  });
}

struct Node : torch::autograd::Function<Node> {
  static Tensor forward(
      AutogradContext* context,
      const Tensor& weight,
      const Tensor& ids,
      WeightGrad weight_grad) {
    const Tensor table = weight.contiguous();
    const Tensor flat = ids.reshape({-1}).contiguous();
    std::vector<int64_t> sizes = ids.sizes().vec();
    sizes.push_back(weight.size(1));
    Tensor out = at::empty(sizes, weight.options());
    const int64_t bytes = weight.size(1) * weight.element_size();
    const auto* from = data<char>(table);
    auto* to = data<char>(out);
    const int64_t* id = data<int64_t>(flat);
    at::parallel_for(0, flat.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        std::memcpy(to + row * bytes, from + id[row] * bytes, bytes);
    });
    context->save_for_backward({weight, ids});
    carry(context, weight_grad);
    return out;
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor& weight = saved[0];
    variable_list result(3);
    if (!gradients[0].defined() || !weight.requires_grad())
      return result;
    if (carried<WeightGrad>(context) == WeightGrad::kAccumulate) {
      add_rows(saved[1], gradients[0], accumulation_target(kOp, weight));
      return result;
    }
    const Tensor sum =
        at::zeros(weight.sizes(), weight.options().dtype(torch::kFloat));
    add_rows(saved[1], gradients[0], sum);
    result[0] = sum.to(weight.scalar_type());
    return result;
  }
};

}  // namespace

Tensor
embedding(const Tensor& ids, const Tensor& weight, WeightGrad weight_grad) {
  check(ids, weight);
  if (!has_kernel(weight))
    return torch::embedding(
        weight_grad == WeightGrad::kReturn ? weight : accumulating(kOp, weight),
        ids);
  if (weight_grad == WeightGrad::kAccumulate)
    check_accumulates(kOp, weight);
  return Node::apply(weight, ids, weight_grad);
}

}  // namespace brigade::ops

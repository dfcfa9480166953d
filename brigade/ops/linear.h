// y = x weight^T + bias, with the weight's gradient added straight into fp32
// main_grad inside the product (see weight_grad.h), and several linears on one
// input as one product.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "brigade/ops/input_dropout.h"
#include "brigade/ops/op_options.h"

namespace brigade::ops {

// An input that backward makes once more from what is kept anyway, where that
// is cheap, instead of keeping it for the weight's gradient.
struct RemadeInput {
  std::vector<Tensor> from;
  // Returns what x was; without autograd. Empty: x is kept.
  std::function<Tensor(const std::vector<Tensor>& from)> make;
};

// What is added to a linear: y = x weight^T + scale (x a^T) b^T (LoRA). `a` and
// `b` are of the dtype of the weight, which must be frozen.
struct LowRank {
  Tensor a;  // [rank, in]; undefined: nothing is added
  Tensor b;  // [out, rank]
  double scale = 1;
  uint64_t key = 0;  // of the linear, for InputDropout
  // [out], float32: the norms that the rows of weight + scale b a are given
  // (DoRA, row_magnitude.h); undefined: they keep their own.
  Tensor magnitude = {};
  // Keeps row_magnitude.h's norms of an adapter that does not train; null: they
  // are computed in each call.
  std::shared_ptr<Tensor> kept_squares = nullptr;
};

// What the caller of linear_group() declares of its weights.
enum class WeightGroup {
  kSeparate,  // one product per weight
  // One matrix: the model declares them as a group and the owner of their
  // memory keeps them adjacent (the data parallel's flat buffers do). One
  // product for all. Weights that turn out not to be adjacent, those of a
  // module that is not wrapped, are multiplied one by one.
  kOneMatrix,
};

// What backward does with the gradients of a linear.
struct LinearOptions {
  WeightGrad weight_grad = WeightGrad::kReturn;
  // Called in backward with the input's gradient, before the weight's gradient
  // is computed; what it returns is called after that. Tensor parallel starts
  // an all-reduce in the first and waits for it in the second. Both may be
  // empty.
  std::function<std::function<void()>(Tensor input_grad)> on_input_grad;
  // If set, backward hands the computation of the weight's (and the bias's)
  // gradient to this function instead of doing it: the zero-bubble pipeline
  // runs it later. Needs kAccumulate. The parameter's AccumulateGrad fires
  // during backward, before the gradient is there: the code that defers it
  // marks the parameter ready.
  std::function<void(std::function<void()> compute)> defer_weight_grad;
  RemadeInput input;
  Kernels kernels = Kernels::kAuto;
  WeightGroup group = WeightGroup::kSeparate;
  // None, or one for each weight; each `a` together is a group as the weights.
  std::vector<LowRank> adapters;
  // The dropout of their inputs. Each has a mask of its own, so that no
  // products of `a` are one.
  InputDropout dropout = {};
};

// x: [.., in]; weight: [out, in]; bias: [out] or undefined. Returns [.., out].
Tensor linear(
    const Tensor& x,
    const Tensor& weight,
    const Tensor& bias,
    const LinearOptions& options);
Tensor linear(
    const Tensor& x,
    const Tensor& weight,
    const Tensor& bias = {},
    const OpOptions& options = {});

// Linears on the same input: weights[i]: [out_i, in]; biases is empty or has
// one entry (possibly undefined) per weight. Returns one [.., out_i] per
// weight. With WeightGroup::kOneMatrix, and weights that are adjacent in memory
// in any order (the data parallel's flat buffers store parameters in reverse),
// there is one product; the outputs are then slices of one buffer, each dense
// in its last dim only.
std::vector<Tensor> linear_group(
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    const LinearOptions& options);
std::vector<Tensor> linear_group(
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases = {},
    const OpOptions& options = {});

// The products alone, outside autograd.
// output_grad: [.., out]; returns [.., in].
Tensor linear_backward_input(
    const Tensor& output_grad,
    const Tensor& weight,
    Kernels kernels = Kernels::kAuto);
// Adds output_grad^T x to weight_grad: [out, in], contiguous, float32 (or of
// x's dtype).
void linear_backward_weight(
    const Tensor& output_grad,
    const Tensor& x,
    Tensor weight_grad,
    Kernels kernels = Kernels::kAuto);

}  // namespace brigade::ops

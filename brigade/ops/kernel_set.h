// KernelSet is what computes the ops. An op (rms_norm.h, attention.h, ...)
// checks its operands, allocates its results, records autograd's node and calls
// a kernel set once for forward and once for backward. There are three sets:
//
//   cpu_kernels()   brigade/kernels/cpu: bf16 and float32 tensors on the CPU,
//                   with vector instructions, oneDNN and AMX
//   aten_kernels()  brigade/kernels/aten: ATen calls alone, on any device, of
//                   any floating-point dtype; KernelSet's own functions
//   cuda_kernels()  brigade/kernels/cuda: ATen's products, and kernels of our
//                   own for bf16 and float32 on NVIDIA's GPUs
//
// A further device is a further set: it overrides the functions that it has
// kernels for, and choose_kernels() learns when to take it.
//
// Life: a set has no state that a caller can see and lives as long as the
// program. Any thread may call it. All functions run outside autograd (under
// NoGradGuard or in an autograd node) on operands that the ops have checked.
//
// "Wide" is the dtype in which sums are kept: double for double operands,
// float32 for all others (wide_dtype()).
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "brigade/ops/adamw.h"
#include "brigade/ops/attention.h"
#include "brigade/ops/cross_entropy.h"
#include "brigade/ops/expert_rows.h"
#include "brigade/ops/input_dropout.h"
#include "brigade/ops/op_options.h"
#include "brigade/ops/rotary.h"
#include "brigade/ops/soft_targets.h"
#include "brigade/ops/stochastic_rounding.h"

namespace brigade::ops {

inline torch::ScalarType wide_dtype(torch::ScalarType dtype) {
  return dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
}
inline torch::ScalarType wide_dtype(const Tensor& x) {
  return wide_dtype(x.scalar_type());
}

struct RmsNormInputs {
  Tensor x;         // [.., C]
  Tensor residual;  // [.., C]; undefined: none
  Tensor weight;    // [C]
  double eps = 0;
  double weight_offset = 0;  // added to the weight, in wide
};
struct RmsNormResult {
  Tensor normed;  // [.., C]
  Tensor sum;     // [.., C]: x + residual, or x itself without one
  Tensor rstd;    // wide, one per row: 1 / sqrt(mean of squares + eps)
};
struct RmsNormBackwardInputs {
  Tensor dnormed;  // [.., C]
  Tensor dsum;     // [.., C], added to the result; undefined: none
  Tensor x;        // [.., C]: what was normed
  Tensor weight;   // [C]
  Tensor rstd;     // wide, one per row
  Tensor dweight;  // [C], wide or float32: the weight's gradient is added to it
  double weight_offset = 0;
};

struct SwigluBackwardInputs {
  Tensor dout;      // [rows, F]
  Tensor gate, up;  // [rows, F]
  // Overwritten: [rows, F] with a dense last dim.
  Tensor dgate, dup;
};

enum class RotaryDirection { kForward, kBackward /* the inverse rotation */ };
struct RotateInputs {
  Tensor y;  // [B, T, H, D] with a dense last dim, overwritten
  Tensor x;  // [B, T, H, D]
  // cos and sin of the T tokens; none: y = x.
  std::optional<RotaryTable> table;
  RotaryDirection direction = RotaryDirection::kForward;
};

// What a matrix product does with the values of its result so far.
enum class Destination {
  kOverwrite,  // c = a b
  kAdd,        // c += a b
};

// A linear without a bias, of several that are multiplied one after the other:
// x [M, in] and y [M, out] with a dense last dim, weight [out, in].
struct LinearOperands {
  Tensor x;
  Tensor weight;
  Tensor y;
};

// alpha a b + beta c, all of one dtype and dense in one dim: a [M, K],
// b [K, N], c [M, N] contiguous, or undefined with an alpha of 1.
struct AddedProduct {
  const Tensor& a;
  const Tensor& b;
  double alpha = 1;
  Tensor c = {};
  double beta = 0;
  // Little more than half of a result known to be symmetric is multiplied.
  bool is_symmetric = false;
};

// What decides how many tokens of the head a kernel set takes at once.
struct HeadSize {
  int64_t tokens = 0;
  int64_t columns = 0;
  torch::ScalarType dtype = torch::kFloat;
  KeepLogits keep_logits = KeepLogits::kWhereQuicker;
  // Whether other ranks hold parts of the vocabulary: they must arrive at the
  // same number on any machine, so it may then depend on the sizes alone.
  bool is_shared = false;
  bool wants_gradients = false;
  // A soft cap: what ATen calls alone compute.
  bool needs_aten = false;
  bool has_teacher = false;
};

// Some tokens of the fused head and cross-entropy.
struct HeadInputs {
  Tensor hidden;           // [rows, C] with a dense last dim
  Tensor weight;           // [V, C] with a dense last dim
  Tensor targets;          // int64 [rows]: row of this weight; -1: none of them
  int64_t valid_rows = 0;  // of the weight; those after it are padding
  // Logits become cap * tanh(logit / cap).
  std::optional<double> logit_soft_cap = std::nullopt;
  // Its ids are rows of this weight; -1: none of them.
  std::optional<SoftTargets> teacher = std::nullopt;
  KeepLogits keep_logits = KeepLogits::kNever;
};
// Per token, over the rows of this weight.
struct HeadStatistics {
  Tensor maxima;  // wide [rows]: the largest logit
  // Wide [2, rows]: of exp(logit - maximum); the target's logit. With a teacher
  // [4, rows]: over its tokens, of p (logit - maximum); over all others, of
  // exp(logit - maximum).
  Tensor sums;
};

// The steps between which a vocab-parallel group reduces the statistics:
//   make_head_chunk()    fills in maxima, and the target's logit in sums[1]
//   sum_exponentials()   fills in the other sums, relative to what is in maxima
//                        by now
//   add_gradients()      at most once, with what is in maxima and sums by now
class HeadChunk {
 public:
  HeadChunk() = default;
  HeadChunk(const HeadChunk&) = delete;
  HeadChunk& operator=(const HeadChunk&) = delete;
  virtual ~HeadChunk() = default;

  virtual void sum_exponentials() = 0;
  // factor: wide [rows], the gradient of each token's loss. Overwrites dhidden
  // ([rows, C], dense), adds to dweight ([V, C], dense, float32 or wide);
  // either may be undefined.
  virtual void
  add_gradients(const Tensor& factor, Tensor dhidden, Tensor dweight) = 0;
};

class KernelSet {
 public:
  KernelSet() = default;
  KernelSet(const KernelSet&) = delete;
  KernelSet& operator=(const KernelSet&) = delete;
  virtual ~KernelSet() = default;

  virtual const char* name() const = 0;
  // Whether it computes on tensors of this device and dtype.
  virtual bool takes(torch::Device device, torch::ScalarType dtype) const = 0;

  virtual RmsNormResult rms_norm(const RmsNormInputs& inputs) const;
  // Returns the gradient of x (and of the residual), [.., C].
  virtual Tensor rms_norm_backward(const RmsNormBackwardInputs& inputs) const;

  // silu(gate) * up, [.., F], contiguous.
  virtual Tensor swiglu(const Tensor& gate, const Tensor& up) const;
  virtual void swiglu_backward(const SwigluBackwardInputs& inputs) const;

  virtual void rotate(const RotateInputs& inputs) const;

  // As attention_forward_onto() and attention_backward_into() of attention.h.
  virtual void attention(
      const AttentionResult& into,
      const AttentionResult& so_far,
      const AttentionOperands& operands,
      const AttentionOptions& options) const;
  virtual void attention_backward(
      const AttentionGradients& into,
      const QueryGradientPart& dq_so_far,
      const AttentionBackwardInputs& inputs,
      const AttentionOptions& options) const;
  // sum over D of dout * out: [B, T, H, D] twice to wide [B, H, T].
  virtual Tensor attention_delta(const Tensor& dout, const Tensor& out) const;
  // sum += other, rotated back where there is a table, rounded once.
  virtual void add_partial_gradient(
      Tensor sum,
      const Tensor& other,
      const std::optional<RotaryTable>& table) const;

  // The products of linears, on rows: [M, n] with a dense last dim.
  // y [M, out] = x [M, in] weight^T (+ bias).
  virtual void linear(
      Tensor y,
      const Tensor& x,
      const Tensor& weight,
      const Tensor& bias) const;
  // input_grad [M, in] = output_grad [M, out] weight.
  virtual void linear_input_grad(
      Tensor input_grad,
      const Tensor& output_grad,
      const Tensor& weight) const;
  // The same of several weights with rows of their own, any number of rows
  // each: y of each is written, or from y as output_grad its x as input_grad.
  virtual void linears(const std::vector<LinearOperands>& each) const;
  virtual void linear_input_grads(
      const std::vector<LinearOperands>& each) const;
  // weight_grad [out, in], float32 or of x's dtype, += output_grad^T x.
  virtual void linear_weight_grad(
      Tensor weight_grad,
      const Tensor& output_grad,
      const Tensor& x) const;
  // c [M, N] = or += a [M, K] b [K, N]; c is wide or of the operands' dtype.
  virtual void multiply(
      Tensor c,
      const Tensor& a,
      const Tensor& b,
      Destination destination) const;

  // y [M, N] = alpha a b + beta c, rounded once; y is none of them.
  virtual void add_product(Tensor y, const AddedProduct& product) const;

  // Rows of weight [V, C] by id: int64 [..] to [.., C].
  virtual Tensor embedding(const Tensor& weight, const Tensor& ids) const;
  // weight_grad [V, C], contiguous, float32 or wide: row ids[i] += gradient[i],
  // in the order of the tokens.
  virtual void embedding_weight_grad(
      Tensor weight_grad,
      const Tensor& ids,
      const Tensor& gradient) const;

  // Rows of experts, in wide and rounded once; weights: wide [N, k], undefined:
  // ones. Each pair's row of x [N, C] times its weight, [R, C].
  virtual Tensor rows_of_pairs(
      const Tensor& x,
      const ExpertPairs& pairs,
      const Tensor& weights) const;
  // The sum of each token's rows, of [R, C], times their weights, choice after
  // choice, [N, C].
  virtual Tensor sum_of_pairs(
      const Tensor& rows,
      const ExpertPairs& pairs,
      const Tensor& weights) const;
  // The product of each pair's row [R, C] and its token's of x [N, C], wide
  // [N, k].
  virtual Tensor products_of_pairs(
      const Tensor& rows,
      const Tensor& x,
      const ExpertPairs& pairs) const;

  // Tokens to take at once where the caller does not say.
  virtual int64_t head_rows_at_once(const HeadSize& size) const;
  // Fills in the statistics, to which the chunk refers.
  virtual std::unique_ptr<HeadChunk> make_head_chunk(
      const HeadInputs& inputs,
      const HeadStatistics& statistics) const;

  virtual void adamw_step(
      const AdamWStep& step,
      const AdamWTensors& tensors,
      AfterRead after_read) const;
  // A double scalar on the device of `values`, a contiguous float32 tensor.
  virtual Tensor sum_of_squares(const Tensor& values) const;

  // As in split_master.h.
  virtual Tensor join_master(const Tensor& weight, const Tensor& low) const;
  virtual void split_master(const Tensor& master, Tensor weight, Tensor low)
      const;
  // As in block_codes.h.
  virtual Tensor decode_blocks(const Tensor& codes, const Tensor& scales) const;
  virtual void encode_blocks(const Tensor& values, Tensor codes, Tensor scales)
      const;
  // As in stochastic_rounding.h.
  virtual void round_stochastically(
      const Tensor& values,
      Tensor rounded,
      const RandomBits& bits) const;
  // As in input_dropout.h.
  virtual void
  drop_elements(Tensor rows, const InputDropout& dropout, uint64_t key) const;
};

// Defined in brigade/kernels/.
const KernelSet& cpu_kernels();
const KernelSet& aten_kernels();
// Null in a build without CUDA.
const KernelSet* cuda_kernels();

// The set that `wanted` means for these operands (undefined ones do not count):
// where kAuto is wanted the first of cpu, cuda and aten that takes them all.
// Operands without elements are ATen's in any case. Throws UsageError naming
// the op and the operand if kCpu is wanted and the CPU kernels do not take it,
// or if the operands differ in dtype.
const KernelSet& choose_kernels(
    std::string_view op,
    Kernels wanted,
    std::initializer_list<const Tensor*> operands);

}  // namespace brigade::ops

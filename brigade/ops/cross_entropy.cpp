#include "brigade/ops/cross_entropy.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "brigade/kernels/cpu/cross_entropy_kernel.h"
#include "brigade/kernels/cpu/cross_entropy_tile.h"
#include "brigade/kernels/cpu/product.h"
#include "brigade/kernels/cpu/scratch.h"
#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/rows.h"

namespace brigade::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOp = "linear_cross_entropy";
constexpr int64_t kRowChunk = 256;
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

int64_t valid_rows(const Tensor& weight, const CrossEntropyOptions& options) {
  return options.valid_rows.value_or(weight.size(0));
}

void check(
    const Tensor& hidden,
    const Tensor& weight,
    const Tensor& targets,
    const CrossEntropyOptions& options) {
  require(
      hidden.dim() == 2 && weight.dim() == 2 && targets.dim() == 1 &&
          hidden.size(1) == weight.size(1) &&
          targets.size(0) == hidden.size(0) &&
          targets.scalar_type() == torch::kLong &&
          hidden.scalar_type() == weight.scalar_type(),
      kOp,
      "hidden {}, weight {} and targets {} do not fit: expected [N, C] and "
      "[V, C] of one dtype and int64 [N]",
      describe(hidden),
      describe(weight),
      describe(targets));
  require(
      valid_rows(weight, options) >= 0 &&
          valid_rows(weight, options) <= weight.size(0),
      kOp,
      "valid_rows {} is not in [0, {}]",
      valid_rows(weight, options),
      weight.size(0));
  const int64_t vocab_size = options.vocab_size.value_or(
      options.vocab_begin + valid_rows(weight, options));
  const Tensor outside = ((targets < 0) | (targets >= vocab_size)) &
                         (targets != options.ignore_index);
  if (targets.numel() == 0 || !outside.any().item<bool>())
    return;
  const auto row = outside.to(torch::kInt).argmax().item<int64_t>();
  throw DataError(fmt::format(
      "[{}] the target of row {} is {}, outside the vocabulary of {}; was the "
      "data made by another tokenizer?",
      kOp,
      row,
      targets[row].item<int64_t>(),
      vocab_size));
}

// One chunk of rows: the logits' statistics, and after the group has agreed on
// them, the gradients.
struct Chunk {
  Tensor hidden;   // [rows, C]
  Tensor targets;  // int64 [rows], rows of this weight; -1: none of them
  Tensor maxima;   // float32 [rows]
  Tensor sums;     // float32 [2, rows]: of exp(logit - maximum); target logit
  bool keeps_logits;
};

// A chunk's float32 logits, in memory that stays mapped: with a vocabulary
// above 32,768 they are larger than what the C allocator keeps. One chunk at a
// time.
Tensor in_scratch(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const auto bytes =
      static_cast<size_t>(c10::multiply_integers(sizes)) * sizeof(float);
  return at::from_blob(scratch(ScratchSlot::kLogits, bytes), sizes, options);
}

// Makes the logits of a chunk in the weight's dtype's product and float32
// softmax; for what the fused kernel does not take.
class LogitsOfChunk {
 public:
  LogitsOfChunk(Chunk& chunk, const Tensor& weight, int64_t valid)
      : chunk_(chunk), weight_(weight) {
    const Tensor& x = chunk.hidden;
    if (x.scalar_type() == torch::kFloat && x.device().is_cpu()) {
      logits_ = in_scratch({x.size(0), weight.size(0)}, x.options());
      product(as_rows(x), as_rows(weight).t(), logits_);
    } else {
      logits_ = at::mm(x, weight.t()).to(torch::kFloat);
    }
    if (valid < weight.size(0))
      logits_.narrow(1, valid, weight.size(0) - valid)
          .fill_(-std::numeric_limits<float>::infinity());
    chunk.maxima.copy_(
        valid > 0
            ? logits_.amax(1)
            : at::full_like(
                  chunk.maxima, -std::numeric_limits<double>::infinity()));
    mine_ = chunk.targets >= 0;
    index_ = chunk.targets.clamp_min(0).unsqueeze(1);
    // Masked, not multiplied: a rank of padding alone has -infinity here.
    chunk.sums[1].copy_(
        weight.size(0) > 0 ? logits_.gather(1, index_).squeeze(1).masked_fill(
                                 mine_.logical_not(), 0)
                           : at::zeros_like(chunk.maxima));
  }

  // Sums of exponentials relative to the (group's) maxima.
  void sum_exponentials() {
    if (!logits_.device().is_cpu()) {
      logits_.sub_(chunk_.maxima.unsqueeze(1)).exp_();
      chunk_.sums[0].copy_(logits_.sum(1));
      return;
    }
    auto* rows = data<float>(logits_);
    const auto* maxima = data<float>(chunk_.maxima);
    auto* sums = data<float>(chunk_.sums);
    const int64_t columns = logits_.size(1);
    at::parallel_for(0, logits_.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        sums[row] = exp_row(rows + row * columns, columns, maxima[row]);
    });
  }

  void gradients(const Tensor& factor, Tensor dhidden, Tensor dweight) {
    logits_.mul_((factor / chunk_.sums[0]).unsqueeze(1));
    if (logits_.size(1) > 0)
      logits_.scatter_add_(1, index_, (-factor * mine_).unsqueeze(1));
    const Tensor dlogits = logits_.to(chunk_.hidden.scalar_type());
    if (dhidden.defined())
      dhidden.copy_(linear_backward_input(dlogits, weight_));
    if (dweight.defined())
      linear_backward_weight(dlogits, chunk_.hidden, dweight);
  }

 private:
  Chunk& chunk_;
  const Tensor& weight_;
  Tensor logits_;
  Tensor mine_;
  Tensor index_;
};

// The same by the fused bf16 kernel, without logits in memory.
class FusedChunk {
 public:
  FusedChunk(Chunk& chunk, const Tensor& weight, int64_t valid)
      : chunk_(chunk),
        shape_{
            .tokens = chunk.hidden.size(0),
            .columns = chunk.hidden.size(1),
            .vocabulary = valid,
            .hidden = data<uint16_t>(chunk.hidden),
            .hidden_stride = chunk.hidden.stride(0),
            .weight = data<uint16_t>(weight),
            .weight_stride = weight.stride(0),
            .target = data<int64_t>(chunk.targets)} {
    own_sums_ = at::empty_like(chunk.maxima);
    if (chunk.keeps_logits)
      kept_ = kept_logits(shape_);
    head_statistics(
        shape_,
        {.maximum = data<float>(chunk.maxima),
         .sum = data<float>(own_sums_),
         .target_logit = data<float>(chunk.sums[1])},
        kept_);
    own_maxima_ = chunk.maxima.clone();
  }

  void sum_exponentials() {
    // Relative to the group's maxima instead of this rank's own.
    chunk_.sums[0].copy_(own_sums_ * (own_maxima_ - chunk_.maxima).exp());
  }

  void gradients(const Tensor& factor, Tensor dhidden, Tensor dweight) {
    const Tensor lse = chunk_.maxima + chunk_.sums[0].log();
    head_gradients(
        shape_,
        {.lse = data<float>(lse),
         .factor = data<float>(factor),
         .target_logit = data<float>(chunk_.sums[1]),
         .dhidden = dhidden.defined() ? data<uint16_t>(dhidden) : nullptr,
         .dweight = dweight.defined() ? data<float>(dweight) : nullptr},
        kept_);
  }

 private:
  Chunk& chunk_;
  HeadShape shape_;
  Tensor own_sums_;
  Tensor own_maxima_;
  std::optional<KeptLogits> kept_;
};

struct Gradients {
  Tensor hidden;  // [N, C], dense
  Tensor weight;  // what the products add to; undefined: not wanted
  bool wanted() const { return hidden.defined() || weight.defined(); }
};

// The sum of a chunk's losses; its rows of the gradients that are defined.
template <typename Logits>
Tensor chunk_loss(
    Chunk& chunk,
    const Tensor& counted,
    const Tensor& weight,
    const CrossEntropyOptions& options,
    double gradient_scale,
    const Gradients& gradients) {
  Logits logits(chunk, weight, valid_rows(weight, options));
  if (options.reduce_max)
    options.reduce_max(chunk.maxima);
  logits.sum_exponentials();
  if (options.reduce_sum)
    options.reduce_sum(chunk.sums);
  const Tensor losses = chunk.sums[0].log() + chunk.maxima - chunk.sums[1];
  if (gradients.wanted())
    logits.gradients(
        counted.to(torch::kFloat) * gradient_scale,
        gradients.hidden,
        gradients.weight);
  return losses.masked_fill(counted.logical_not(), 0).sum();
}

// Whether other ranks hold a part of the vocabulary.
bool is_shared(const Tensor& weight, const CrossEntropyOptions& options) {
  const int64_t end = options.vocab_begin + valid_rows(weight, options);
  return options.vocab_begin > 0 || end < options.vocab_size.value_or(end);
}

// Tokens a chunk of the fused kernel. Each chunk of a shared head is two
// collectives, so that its ranks must cut alike, on whatever machines they are:
// by sizes alone. That is how processors without AMX always cut; with AMX
// chunks of a shared head are smaller (from 256 tokens on, not 1,024) than
// would be quickest.
int64_t fused_row_chunk(
    const Tensor& hidden,
    const Tensor& weight,
    const CrossEntropyOptions& options,
    const Gradients& gradients) {
  const bool small =
      is_shared(weight, options) || keeps_logits(options.keep_logits);
  return gradients.wanted() && small ? kept_row_chunk(hidden.size(0))
                                     : kFusedRowChunk;
}

// Sums the losses; the gradients are for an incoming gradient of
// gradient_scale.
Tensor loss_in_chunks(
    const Tensor& hidden,
    const Tensor& weight,
    const Tensor& targets,
    const CrossEntropyOptions& options,
    double gradient_scale,
    const Gradients& gradients) {
  const bool fused = hidden.scalar_type() == torch::kBFloat16 &&
                     hidden.device().is_cpu() && hidden.size(1) > 0;
  const int64_t valid = valid_rows(weight, options);
  const bool keeps = gradients.wanted() && keeps_logits(options.keep_logits);
  const int64_t chosen =
      fused ? fused_row_chunk(hidden, weight, options, gradients) : kRowChunk;
  const int64_t rows = options.row_chunk > 0 ? options.row_chunk : chosen;
  const Tensor table = as_rows(weight);
  const Tensor all = as_rows(hidden);
  Tensor loss = torch::zeros({}, hidden.options().dtype(torch::kFloat));
  for (int64_t begin = 0; begin < hidden.size(0); begin += rows) {
    const int64_t numel = std::min(rows, hidden.size(0) - begin);
    const Tensor target = targets.narrow(0, begin, numel);
    const Tensor local = target - options.vocab_begin;
    const auto type = loss.options();
    Chunk chunk{
        all.narrow(0, begin, numel),
        torch::where(
            (local >= 0) & (local < valid) & (target != options.ignore_index),
            local,
            at::full_like(local, -1)),
        at::empty({numel}, type),
        at::empty({2, numel}, type),
        keeps};
    const Gradients part{
        gradients.hidden.defined() ? gradients.hidden.narrow(0, begin, numel)
                                   : Tensor(),
        gradients.weight};
    const Tensor counted = target != options.ignore_index;
    loss += fused ? chunk_loss<FusedChunk>(
                        chunk, counted, table, options, gradient_scale, part)
                  : chunk_loss<LogitsOfChunk>(
                        chunk, counted, table, options, gradient_scale, part);
  }
  return loss;
}

struct Saved {
  CrossEntropyOptions options;
  Gradients gradients;
};

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static Tensor forward(
      AutogradContext* context,
      const Tensor& hidden,
      const Tensor& weight,
      const Tensor& targets,
      const CrossEntropyOptions& options) {
    Gradients& gradients = carry(context, Saved{options, {}}).gradients;
    const bool straight = options.weight_grad == WeightGrad::kAccumulate &&
                          options.known_gradient.has_value();
    if (hidden.requires_grad())
      gradients.hidden = at::empty(hidden.sizes(), hidden.options());
    if (weight.requires_grad())
      gradients.weight =
          straight ? accumulation_target(kOp, weight)
                   // Dense rows, as the kernel writes them: not the weight's
                   // own strides, which may be those of a transposed view.
                   : torch::zeros(
                         weight.sizes(), weight.options().dtype(torch::kFloat));
    context->save_for_backward({weight});
    return loss_in_chunks(
        hidden,
        weight,
        targets,
        options,
        options.known_gradient.value_or(1.0),
        gradients);
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list incoming) {
    auto& [options, gradients] = carried<Saved>(context);
    const Tensor weight = context->get_saved_variables()[0];
    variable_list result(4);
    if (!incoming[0].defined())
      return result;
    const auto incoming_value = incoming[0].item<double>();
    const double computed_for = options.known_gradient.value_or(1.0);
    require(
        !options.known_gradient || incoming_value == computed_for,
        kOp,
        "known_gradient was {}, but backward received {}; leave it unset "
        "where the incoming gradient is not known",
        computed_for,
        incoming_value);
    require(
        gradients.hidden.defined() || gradients.weight.defined(),
        kOp,
        "backward was called twice; the gradient is made in forward and kept "
        "for one backward");
    const double scale = incoming_value / computed_for;
    if (gradients.hidden.defined())
      result[0] = scale == 1.0 ? gradients.hidden : gradients.hidden * scale;
    if (gradients.weight.defined()) {
      if (options.weight_grad == WeightGrad::kReturn)
        result[1] = gradients.weight.mul_(scale).to(weight.scalar_type());
      else if (!options.known_gradient)
        accumulation_target(kOp, weight).add_(gradients.weight, scale);
    }
    gradients = {};
    return result;
  }
};

}  // namespace

Tensor linear_cross_entropy(
    const Tensor& hidden,
    const Tensor& weight,
    const Tensor& targets,
    const CrossEntropyOptions& options) {
  check(hidden, weight, targets, options);
  Gradients none;
  if (!torch::GradMode::is_enabled() ||
      (!hidden.requires_grad() && !weight.requires_grad()))
    return loss_in_chunks(
        hidden.detach(), weight.detach(), targets, options, 1.0, none);
  if (options.weight_grad == WeightGrad::kAccumulate && weight.requires_grad())
    check_accumulates(kOp, weight);
  return LinearCrossEntropy::apply(hidden, weight, targets, options);
}

}  // namespace brigade::ops

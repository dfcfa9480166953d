// A small model in as many parts as a test wants stages: an embedding, one
// block per stage, a loss. Weights and tokens are closed forms of their
// indices, so that every rank makes the same model without talking.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "brigade/pipeline_parallel/stage.h"
#include "brigade/schedule/weight_gradient_queue.h"

namespace brigade::testing {

inline constexpr int64_t kBatch = 2;        // B
inline constexpr int64_t kTokens = 3;       // T
inline constexpr int64_t kHidden = 8;       // C
inline constexpr int64_t kVocabulary = 11;  // V

// linear() whose weight gradient goes through a queue.
struct QueuedLinear : torch::autograd::Function<QueuedLinear> {
  static torch::Tensor forward(
      torch::autograd::AutogradContext* context,
      const torch::Tensor& input,  // [B, T, C]
      const torch::Tensor& weight,
      WeightGradientQueue* queue) {
    context->save_for_backward({input, weight});
    context->saved_data["queue"] = reinterpret_cast<int64_t>(queue);
    return input.matmul(weight.t());
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor& input = saved[0];
    const torch::Tensor& weight = saved[1];
    const torch::Tensor gradient = gradients[0];
    auto* queue = reinterpret_cast<WeightGradientQueue*>(
        context->saved_data["queue"].toInt());
    queue->add([input, weight, gradient]() mutable {
      const torch::Tensor update =
          gradient.flatten(0, 1).t().matmul(input.flatten(0, 1));
      if (weight.grad().defined())
        weight.mutable_grad().add_(update);
      else
        weight.mutable_grad() = update;
    });
    return {gradient.matmul(weight), torch::Tensor(), torch::Tensor()};
  }
};

class MlpChain {
 public:
  explicit MlpChain(int blocks) {
    embedding_ = values({kVocabulary, kHidden}, 0.1);
    head_ = values({kVocabulary, kHidden}, 0.2);
    for (int i = 0; i < blocks; ++i) {
      weights_.push_back(values({kHidden, kHidden}, 1.0 + i));
      biases_.push_back(values({kHidden}, 2.0 + i));
    }
  }

  int blocks() const { return static_cast<int>(weights_.size()); }

  // [B, T] tokens of a micro-batch; targets are the next micro-batch's.
  static torch::Tensor tokens(int micro_batch) {
    return (torch::arange(kBatch * kTokens) * 7 + micro_batch * 5)
        .remainder(kVocabulary)
        .reshape({kBatch, kTokens});
  }

  torch::Tensor embed(int micro_batch) const {
    return embedding_.index_select(0, tokens(micro_batch).flatten())
        .reshape({kBatch, kTokens, kHidden});
  }

  torch::Tensor block(
      int i,
      const torch::Tensor& input,
      WeightGradientQueue* queue = nullptr) const {
    const auto at = static_cast<size_t>(i);
    const torch::Tensor product =
        queue != nullptr ? QueuedLinear::apply(input, weights_[at], queue)
                         : input.matmul(weights_[at].t());
    return input + torch::tanh(product + biases_[at]);
  }

  // Summed over the micro-batch's tokens.
  torch::Tensor loss(int micro_batch, const torch::Tensor& hidden) const {
    const torch::Tensor logits = hidden.flatten(0, 1).matmul(head_.t());
    return -torch::log_softmax(logits, -1)
                .gather(1, tokens(micro_batch + 1).flatten().unsqueeze(1))
                .sum();
  }

  // Stage s of blocks() stages: block s, with the embedding and the loss at
  // the ends.
  std::shared_ptr<PipelineStage> stage(
      int s,
      std::shared_ptr<WeightGradientQueue> queue = nullptr) const {
    return std::make_shared<PipelineStage>(
        s,
        blocks(),
        [this, s, queue](int micro_batch, const torch::Tensor& input) {
          torch::Tensor hidden =
              block(s, s == 0 ? embed(micro_batch) : input, queue.get());
          return s == blocks() - 1 ? loss(micro_batch, hidden) : hidden;
        },
        queue);
  }

  // One process, one micro-batch after the other. Returns the summed loss.
  torch::Tensor naive_step(int micro_batches, double loss_gradient) const {
    torch::Tensor sum;
    for (int k = 0; k < micro_batches; ++k) {
      torch::Tensor hidden = embed(k);
      for (int i = 0; i < blocks(); ++i)
        hidden = block(i, hidden);
      const torch::Tensor one = loss(k, hidden);
      one.backward(torch::scalar_tensor(loss_gradient));
      sum = sum.defined() ? sum + one.detach() : one.detach();
    }
    return sum;
  }

  // Parameters of stage s.
  std::vector<torch::Tensor> parameters(int s) const {
    const auto at = static_cast<size_t>(s);
    std::vector<torch::Tensor> result{weights_[at], biases_[at]};
    if (s == 0)
      result.push_back(embedding_);
    if (s == blocks() - 1)
      result.push_back(head_);
    return result;
  }

 private:
  static torch::Tensor values(std::vector<int64_t> shape, double phase) {
    int64_t numel = 1;
    for (int64_t size : shape)
      numel *= size;
    return (torch::sin(torch::arange(numel, torch::kFloat) * 1.7 + phase) * 0.4)
        .reshape(shape)
        .set_requires_grad(true);
  }

  torch::Tensor embedding_;
  torch::Tensor head_;
  std::vector<torch::Tensor> weights_;
  std::vector<torch::Tensor> biases_;
};

}  // namespace brigade::testing

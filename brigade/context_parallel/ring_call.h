// One call of ring attention: the data that its forward and backward share.
#pragma once

#include <optional>
#include <vector>

#include "brigade/context_parallel/ring_attention.h"
#include "brigade/schedule/ring_plan.h"

namespace brigade {

// The tokens `range` of x, along `dim`.
torch::Tensor
tokens(const torch::Tensor& x, const TokenRange& range, int64_t dim = 1);

// [B, T, heads, D] in memory that has a head's tokens side by side, the order
// in which kernels read them.
torch::Tensor empty_by_heads(
    at::IntArrayRef sizes,
    const torch::TensorOptions& options);

// Keys and values of some tokens, or their gradients, as they are sent: one
// allocation, ordered by heads.
struct RingBlock {
  static constexpr int64_t kTokenDim = 3;
  torch::Tensor memory;  // [2, B, Hkv, tokens, D]
  torch::Tensor keys() const { return memory[0].transpose(1, 2); }
  torch::Tensor values() const { return memory[1].transpose(1, 2); }
};

class RingCall {
 public:
  // local_tokens: T/R.
  RingCall(
      CommunicatorPtr ring,
      RingAttentionOptions options,
      int64_t local_tokens);

  const CommunicatorPtr& ring() const { return ring_; }
  int last_step() const { return ring_->size() - 1; }
  const RingStep& step(int i) const { return steps_[static_cast<size_t>(i)]; }

  // The sizes of the block of step i: the keys, rotated, and the values of its
  // owner's tokens that travel.
  std::vector<int64_t> block_sizes(const torch::Tensor& k, int i) const;
  // This rank's.
  RingBlock own_block(const torch::Tensor& k, const torch::Tensor& v) const;
  // The tokens of this rank that travel.
  const TokenRange& own_travelling() const { return travelling_[0]; }
  // The tokens of step i's block that its keys are.
  TokenRange keys_in_block(int i) const;

  // Attention of step i: of the own keys as they are, or of a block's.
  ops::AttentionOptions attention(int i, torch::ScalarType out_dtype) const;
  ops::Kernels kernels() const { return options_.attention.kernels; }
  // The table's rows of this rank's tokens `range`; empty without rotation.
  std::optional<ops::RotaryTable> rotary(const TokenRange& range) const;

  void computed(int step) const;

 private:
  CommunicatorPtr ring_;
  RingAttentionOptions options_;
  RingPlanOptions plan_;
  std::vector<RingStep> steps_;
  std::vector<TokenRange> travelling_;  // of the block of each step
};

}  // namespace brigade

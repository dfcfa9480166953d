#include "brigade/train/peak_rate.h"

#include <gtest/gtest.h>

namespace brigade {
namespace {

// Qwen3-0.6B: 16 heads of 128 are twice as wide as its hidden size of 1024.
LlamaConfig qwen3() {
  LlamaConfig llama;
  llama.architecture = Architecture::kQwen3;
  llama.vocab_size = 151936;
  llama.hidden_size = 1024;
  llama.intermediate_size = 3072;
  llama.num_hidden_layers = 28;
  llama.num_attention_heads = 16;
  llama.num_key_value_heads = 8;
  llama.head_dim = 128;
  llama.tie_word_embeddings = true;
  llama.qk_norm = true;
  return llama;
}

TEST(FlopsPerToken, CountsAttentionByItsHeadsAndNotByTheHiddenSize) {
  constexpr double kProjections = 2.0 * 1024 * 2048 + 2.0 * 1024 * 1024;
  constexpr double kMlp = 3.0 * 1024 * 3072;
  constexpr double kNorms = 2.0 * 1024 + 2.0 * 128;
  constexpr double kParameters =
      28 * (kProjections + kMlp + kNorms) + 151936.0 * 1024 + 1024;
  constexpr double kAttention = 12.0 * 28 * (16 * 128) * 4096;
  EXPECT_EQ(flops_per_token(qwen3(), 4096), 6 * kParameters + kAttention);
}

}  // namespace
}  // namespace brigade

// A model in bf16 on the CPU, also where oneDNN has no bf16 products: the suite
// runs this again with DNNL_MAX_CPU_ISA.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <utility>

#include "brigade/model/decoder_model.h"

namespace brigade {
namespace {

using torch::Tensor;

constexpr int64_t kTokens = 128;
constexpr int64_t kVocabularySize = 61;

// The gate of its shared expert is libtorch's own product.
DecoderConfig model_with_shared_expert() {
  DecoderConfig config;
  config.architecture = Architecture::kQwen2Moe;
  config.vocab_size = kVocabularySize;
  config.hidden_size = 64;
  config.intermediate_size = 48;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.experts = ExpertsConfig{
      .num_experts = 2,
      .num_experts_per_tok = 2,
      .width = 32,
      .shared_width = 32};
  return config;
}

std::shared_ptr<DecoderModel> model_in(torch::ScalarType dtype) {
  const DecoderConfig config = model_with_shared_expert();
  ModelContext context = single_rank_context(config);
  context.dtype = dtype;
  return std::make_shared<DecoderModel>(
      std::make_shared<const ModelContext>(std::move(context)),
      whole_model(config));
}

double loss_of(DecoderModel& model) {
  const Tensor ids =
      torch::arange(kTokens).mul(7).remainder(kVocabularySize).view({2, -1});
  const Tensor loss = model.forward(
      {.ids = ids,
       .targets = (ids + 1).remainder(kVocabularySize),
       .document_starts = {}},
      {},
      torch::arange(kTokens / 2));
  loss.backward();
  return loss.item<double>();
}

TEST(Bf16Model, HasTheLossOfFloat32) {
  const auto narrow = model_in(torch::kBFloat16);
  const auto wide = model_in(torch::kFloat);
  {
    const torch::NoGradGuard no_grad;
    torch::manual_seed(3);
    for (auto& item : narrow->named_parameters()) {
      item.value().normal_(0, 0.1);
      wide->named_parameters()[item.key()].copy_(item.value());
    }
  }
  const double expected = loss_of(*wide);
  EXPECT_NEAR(loss_of(*narrow), expected, 0.01 * expected);
  for (const auto& item : narrow->named_parameters())
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>())
        << item.key();
}

}  // namespace
}  // namespace brigade

// What a model learns of packed documents is what it learns of each by itself.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "brigade/data/packed_documents.h"
#include "brigade/files/file.h"
#include "brigade/model/decoder_model.h"
#include "tests/support/compare.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

constexpr int64_t kSequenceTokens = 32;  // T
constexpr int64_t kVocabulary = 61;

DecoderConfig small_llama() {
  DecoderConfig config;
  config.vocab_size = kVocabulary;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  return config;
}

// Documents of 5, 20, 9, 7, 11 and 3 tokens: 2 sequences, with padding.
std::shared_ptr<const TokenDataset> write_documents(
    const std::filesystem::path& folder) {
  const std::vector<uint64_t> lengths = {5, 20, 9, 7, 11, 3};
  std::vector<uint64_t> ends(lengths.size());
  std::partial_sum(lengths.begin(), lengths.end(), ends.begin());
  std::vector<uint16_t> tokens(ends.back());
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<uint16_t>(i * i * 7 % kVocabulary);
  const auto write = [&](const char* name, const auto& values) {
    const std::string bytes(
        reinterpret_cast<const char*>(values.data()),
        values.size() * sizeof(values[0]));
    write_text_file(folder / name, bytes);
  };
  write("a.ds", tokens);
  write("a.ds.index", ends);
  return std::make_shared<const TokenDataset>(
      TokenDataset::open(folder / "a.ds", {.vocab_size = kVocabulary}));
}

struct Learned {
  double loss = 0;  // summed over tokens
  std::map<std::string, torch::Tensor> gradients;
  void operator+=(const Learned& other) {
    loss += other.loss;
    for (const auto& [name, gradient] : other.gradients)
      gradients[name] =
          gradients[name].defined() ? gradients[name] + gradient : gradient;
  }
};

class PackedDocumentsModel : public ::testing::TestWithParam<ops::Kernels> {
 protected:
  PackedDocumentsModel() {
    ModelContext context = single_rank_context(small_llama());
    context.kernels = GetParam();
    model_ = std::make_shared<DecoderModel>(
        std::make_shared<const ModelContext>(std::move(context)),
        whole_model(small_llama()));
    torch::manual_seed(1);
    const torch::NoGradGuard no_gradients;
    for (torch::Tensor& weight : model_->parameters())
      weight.normal_(weight.dim() == 1 ? 1.0 : 0.0, 0.2);
  }

  Learned learn(const MicroBatch& batch) {
    for (torch::Tensor& weight : model_->parameters())
      weight.mutable_grad() = torch::Tensor();
    const torch::Tensor loss =
        model_->forward(batch, {}, torch::arange(batch.ids.size(1)));
    loss.backward();
    Learned learned{.loss = loss.item<double>(), .gradients = {}};
    for (const auto& item : model_->named_parameters())
      learned.gradients[item.key()] = item.value().grad().clone();
    return learned;
  }

  static void expect_equal(const Learned& actual, const Learned& expected) {
    EXPECT_NEAR(actual.loss, expected.loss, 1e-5 * expected.loss);
    for (const auto& [name, gradient] : expected.gradients) {
      const double error =
          testing::relative_error(actual.gradients.at(name), gradient);
      EXPECT_LT(error, 1e-5) << name;
    }
  }

  TemporaryFolder folder_;
  std::shared_ptr<DecoderModel> model_;
};

// As the loader and MicroBatches make it.
MicroBatch packed_batch(const Window& window) {
  const auto starts = torch::zeros({1, kSequenceTokens}, torch::kLong);
  for (const int64_t start : window.document_starts)
    starts.narrow(1, start, kSequenceTokens - start).fill_(start);
  return {
      .ids = torch::tensor(window.inputs).unsqueeze(0),
      .targets = torch::tensor(window.targets).unsqueeze(0),
      .document_starts = starts};
}

TEST_P(PackedDocumentsModel, LearnsOfEachWhatItWouldByItself) {
  const PackedDocuments source(
      write_documents(folder_.path()),
      kSequenceTokens,
      {.windows = {0, 6}, .shuffle = false});
  ASSERT_EQ(source.samples_per_epoch(), 2U);
  int documents = 0;
  for (uint64_t sample = 0; sample < source.samples_per_epoch(); ++sample) {
    Window window;
    source.read(sample, window);
    const MicroBatch batch = packed_batch(window);
    std::vector<int64_t> ends = window.document_starts;
    ends.push_back(kSequenceTokens);
    Learned sum;
    int64_t begin = 0;
    for (const int64_t end : ends) {
      const int64_t length = end - begin;
      const torch::Tensor targets = batch.targets.narrow(1, begin, length);
      if (targets[0][0].item<int64_t>() != kNoTarget) {
        ++documents;
        const Learned alone = learn(
            {.ids = batch.ids.narrow(1, begin, length).contiguous(),
             .targets = targets.contiguous(),
             .document_starts = {}});
        // All others are there, but do not count.
        MicroBatch among = batch;
        among.targets = torch::full_like(batch.targets, kNoTarget);
        among.targets.narrow(1, begin, length).copy_(targets);
        expect_equal(learn(among), alone);
        sum += alone;
      }
      begin = end;
    }
    expect_equal(learn(batch), sum);
  }
  EXPECT_EQ(documents, 6);
}

INSTANTIATE_TEST_SUITE_P(
    KernelSets,
    PackedDocumentsModel,
    ::testing::Values(ops::Kernels::kCpu, ops::Kernels::kAten),
    [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace brigade

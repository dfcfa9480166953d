#include "brigade/train/peak_rate.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "brigade/files/file.h"

namespace brigade {
namespace {

// Qwen3-0.6B: 16 heads of 128 are twice as wide as its hidden size of 1024.
DecoderConfig qwen3() {
  DecoderConfig decoder;
  decoder.architecture = Architecture::kQwen3;
  decoder.vocab_size = 151936;
  decoder.hidden_size = 1024;
  decoder.intermediate_size = 3072;
  decoder.num_hidden_layers = 28;
  decoder.num_attention_heads = 16;
  decoder.num_key_value_heads = 8;
  decoder.head_dim = 128;
  decoder.tie_word_embeddings = true;
  decoder.qk_norm = true;
  return decoder;
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

class PeakRate : public ::testing::Test {
 protected:
  PeakRate() { std::filesystem::remove_all(folder_); }
  ~PeakRate() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path file() const { return folder_ / "peak_rate.json"; }

  std::filesystem::path folder_ =
      std::filesystem::path(BRIGADE_BINARY_DIR) / "tests" / "peak_rate_cache";
};

TEST_F(PeakRate, IsMeasuredOnceAndThenReadFromTheCache) {
  const double measured = peak_flops(torch::kFloat, 2, {folder_});
  EXPECT_GT(measured, 0);
  EXPECT_EQ(peak_flops(torch::kFloat, 2, {folder_}), measured);
  auto known = nlohmann::json::parse(read_text_file(file()));
  ASSERT_EQ(known.size(), 1U);
  known.begin().value() = 12.5;
  write_text_file(file(), known.dump());
  EXPECT_EQ(peak_flops(torch::kFloat, 2, {folder_}), 12.5);
}

TEST_F(PeakRate, IsKeptByTheNumberOfRanksThatShareTheMachine) {
  peak_flops(torch::kFloat, 1, {folder_});
  peak_flops(torch::kFloat, 2, {folder_});
  EXPECT_EQ(nlohmann::json::parse(read_text_file(file())).size(), 2U);
}

TEST_F(PeakRate, ARankThatOnlyReadsLeavesNoFile) {
  EXPECT_GT(
      peak_flops(torch::kFloat, 2, {folder_, PeakRateCache::Access::kRead}), 0);
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(PeakRate, IsMeasuredAgainWhereTheCacheIsNoJson) {
  std::filesystem::create_directories(folder_);
  write_text_file(file(), "no json");
  EXPECT_GT(peak_flops(torch::kFloat, 2, {folder_}), 0);
  EXPECT_EQ(nlohmann::json::parse(read_text_file(file())).size(), 1U);
}

TEST_F(PeakRate, IsMeasuredWhereTheCacheHasNoRateThatCanBe) {
  peak_flops(torch::kFloat, 2, {folder_});
  auto known = nlohmann::json::parse(read_text_file(file()));
  for (const double rate : {0.0, -5.0, 1e300}) {
    known.begin().value() = rate;
    write_text_file(file(), known.dump());
    EXPECT_NE(peak_flops(torch::kFloat, 2, {folder_}), rate);
  }
  std::filesystem::remove(file());
  std::filesystem::create_directory(file());
  EXPECT_GT(peak_flops(torch::kFloat, 2, {folder_}), 0);
}

}  // namespace
}  // namespace brigade

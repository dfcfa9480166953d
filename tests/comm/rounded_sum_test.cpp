// Sums of float32 values that travel in few bits.
#include "brigade/comm/sums/rounded_sum.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::run_ranks;
using torch::Tensor;

Tensor rounded_values_of(int rank, int64_t numel, int step = 0) {
  return torch::arange(numel, torch::kFloat)
      .mul_(0.37 + rank)
      .add_(step)
      .sin_()
      .mul_(1.0 + rank);
}

void sum_rounded(RoundedSum& sum, const Tensor& values, const Tensor& errors) {
  sum.scatter(values, errors)->wait();
  sum.gather()->wait();
  sum.finish();
}

struct WireCase {
  WireFormat format;
  // The largest rounding error, relative to the block's largest magnitude.
  double unit;
};
const WireCase kWires[] = {
    {WireFormat::kBf16, 1.0 / 256},
    {WireFormat::kInt8, 0.5 / 127},
    {WireFormat::kInt4, 0.5 / 7}};

TEST(BlockWire, ABlockComesBackWithinHalfAStep) {
  for (const auto& [format, unit] : kWires) {
    for (const int64_t count : {int64_t{1}, int64_t{77}, block_numel(format)}) {
      const Tensor values = rounded_values_of(1, count) * 3e-5;
      std::vector<uint8_t> block(static_cast<size_t>(block_bytes(format)));
      Tensor back = torch::empty({count});
      encode_block(format, values.data_ptr<float>(), count, block.data());
      decode_block(format, block.data(), count, back.data_ptr<float>());
      const double largest = values.abs().max().item<double>();
      EXPECT_LE(
          (back - values).abs().max().item<double>(), 1.0001 * unit * largest)
          << to_string(format) << " " << count;
      // The largest value is exact where the format has levels.
      if (format != WireFormat::kBf16) {
        EXPECT_NEAR(back.abs().max().item<double>(), largest, 1e-6 * largest);
      }
    }
  }
}

Tensor through_int2(const Tensor& values) {
  const int64_t count = values.numel();
  std::vector<uint8_t> block(
      static_cast<size_t>(block_bytes(WireFormat::kInt2)));
  Tensor back = torch::empty({count});
  encode_block(
      WireFormat::kInt2, values.data_ptr<float>(), count, block.data());
  decode_block(WireFormat::kInt2, block.data(), count, back.data_ptr<float>());
  return back;
}

TEST(BlockWire, Int2HasFourLevelsWithTheLeastSquareError) {
  // Their root mean square is 2; magnitudes lie on both sides of 0.9814 times
  // it.
  const Tensor values = torch::tensor(
      {1.96F, -1.96F, 1.97F, -1.97F, 0.1F, -3.0F, 1.2F, 2.4708298F});
  ASSERT_NEAR(values.square().mean().sqrt().item<double>(), 2, 1e-6);
  const Tensor back = through_int2(values);
  const double inner = back[0].item<double>();
  const double outer = inner * 1.510 / 0.4528;
  const std::vector<double> expected{
      inner, -inner, outer, -outer, inner, -outer, inner, outer};
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(back[static_cast<int64_t>(i)].item<double>(), expected[i], 1e-5)
        << i;
  // The scale is optimal when the error is orthogonal to the result.
  EXPECT_NEAR(((values - back) * back).sum().item<double>(), 0, 1e-4);
}

TEST(BlockWire, Int2LosesAnEighthOfNormalValuesAndNeverAll) {
  torch::manual_seed(1);
  const auto lost = [](const Tensor& values) {
    const Tensor error = through_int2(values) - values;
    return (error.square().sum() / values.square().sum()).item<double>();
  };
  double sum = 0;
  for (int i = 0; i < 200; ++i)
    sum += lost(torch::randn({256}) * 1e-20);
  EXPECT_NEAR(sum / 200, 0.1175, 0.002);
  // One large value among others of any size, with heavy tails.
  for (const float others : {0.0F, 1e-3F, 0.03F, 0.1F, 0.3F, 1.0F}) {
    for (const int64_t count : {1, 2, 3, 16, 77, 256}) {
      Tensor values = torch::randn({count}) * others;
      values[count / 2] = 1;
      EXPECT_LT(lost(values), 0.97) << others << " " << count;
      EXPECT_LT(lost(torch::randn({count}).pow(5)), 0.97) << count;
    }
  }
}

TEST(BlockWire, Float32ComesBackAsItIs) {
  for (const int64_t count : {int64_t{1}, int64_t{77}, int64_t{256}}) {
    Tensor values = rounded_values_of(1, count) * 3e-5;
    values[0] = std::numeric_limits<float>::infinity();
    std::vector<uint8_t> block(
        static_cast<size_t>(block_bytes(WireFormat::kFp32)));
    Tensor back = torch::empty({count});
    encode_block(
        WireFormat::kFp32, values.data_ptr<float>(), count, block.data());
    decode_block(
        WireFormat::kFp32, block.data(), count, back.data_ptr<float>());
    EXPECT_TRUE(torch::equal(back, values)) << count;
  }
}

TEST(BlockWire, ZerosAndTheSmallestNumbersBecomeZerosAndNothingElse) {
  for (const auto& [format, unit] : kWires) {
    for (const float value : {0.0F, 1e-45F}) {
      std::vector<float> values(20, value);
      std::vector<uint8_t> block(static_cast<size_t>(block_bytes(format)));
      encode_block(format, values.data(), 20, block.data());
      decode_block(format, block.data(), 20, values.data());
      for (const float back : values)
        EXPECT_LE(std::abs(back), 1e-44F) << to_string(format);
    }
  }
}

TEST(BlockWire, ABlockWithAValueThatIsNotFiniteComesBackNotFinite) {
  for (const WireFormat format :
       {WireFormat::kInt8, WireFormat::kInt4, WireFormat::kInt2}) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> values(20, 1);
      values[7] = bad;
      std::vector<uint8_t> block(static_cast<size_t>(block_bytes(format)));
      encode_block(format, values.data(), 20, block.data());
      decode_block(format, block.data(), 20, values.data());
      for (const float back : values)
        EXPECT_TRUE(std::isnan(back));
    }
  }
}

TEST(RoundedSum, EveryRankHasTheSameSumWithinItsRounding) {
  for (const auto& [format, unit] : kWires) {
    for (const int ranks : {1, 2, 3, 5}) {
      run_ranks(
          ranks,
          [&, format = format, unit = unit](const CommunicatorPtr& world) {
            constexpr int64_t kNumel = 1500;
            // Two ranges, and elements between them.
            RoundedSum sum(format, {{0, 700}, {800, 700}}, *world);
            Tensor exact = torch::zeros({kNumel}, torch::kDouble);
            double largest = 0;
            for (int rank = 0; rank < world->size(); ++rank) {
              exact += rounded_values_of(rank, kNumel);
              largest += 1.0 + rank;
            }
            Tensor values = rounded_values_of(world->rank(), kNumel);
            sum_rounded(sum, values, torch::zeros({kNumel}));
            // One rounding of each part, one of the sum.
            const Tensor error = (values - exact).abs();
            const double bound =
                ranks == 1 ? 1e-6 : 1.01 * unit * 2 * largest + 1e-6;
            EXPECT_LE(error.narrow(0, 0, 700).max().item<double>(), bound);
            EXPECT_LE(error.narrow(0, 800, 700).max().item<double>(), bound);
            // Elements outside the ranges are untouched.
            EXPECT_TRUE(torch::equal(
                values.narrow(0, 700, 100),
                rounded_values_of(world->rank(), kNumel).narrow(0, 700, 100)));
            Tensor all = torch::empty({world->size(), kNumel});
            world->all_gather(all, values)->wait();
            for (int rank = 1; rank < world->size(); ++rank)
              EXPECT_TRUE(torch::equal(
                  all[rank].narrow(0, 0, 700), all[0].narrow(0, 0, 700)));
          });
    }
  }
}

// Nothing is lost: the ranks keep as errors what the sums lack.
TEST(RoundedSum, SumsOfAllStepsAndTheErrorsLeftAreWhatWasGiven) {
  for (const auto& [format, unit] : kWires) {
    run_ranks(3, [format = format](const CommunicatorPtr& world) {
      constexpr int64_t kNumel = 1000;
      RoundedSum sum(format, {{0, kNumel}}, *world);
      Tensor errors = torch::zeros({kNumel});
      Tensor got = torch::zeros({kNumel}, torch::kDouble);
      Tensor given = torch::zeros({kNumel}, torch::kDouble);
      for (int step = 0; step < 20; ++step) {
        Tensor values = rounded_values_of(world->rank(), kNumel, step);
        for (int rank = 0; rank < world->size(); ++rank)
          given += rounded_values_of(rank, kNumel, step);
        sum_rounded(sum, values, errors);
        got += values;
      }
      EXPECT_GT(errors.abs().max().item<double>(), 0);
      Tensor left = errors.to(torch::kDouble);
      world->all_reduce(left)->wait();
      EXPECT_LE((got + left - given).abs().max().item<double>(), 1e-4)
          << to_string(format);
    });
  }
}

// A range that tensor parallel ranks share lies beside ranges that differ.
TEST(RoundedSum, ARangesRoundingDoesNotDependOnItsNeighbours) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    Tensor with[2];
    for (int other = 0; other < 2; ++other) {
      RoundedSum sum(WireFormat::kInt8, {{0, 300}, {300, 100}}, *world);
      Tensor values = rounded_values_of(world->rank(), 400);
      values.narrow(0, 0, 300).mul_(other == 0 ? 1 : 1000);
      sum_rounded(sum, values, torch::zeros({400}));
      with[other] = values.narrow(0, 300, 100).clone();
    }
    EXPECT_TRUE(torch::equal(with[0], with[1]));
  });
}

TEST(RoundedSum, AnInfinityIsSeenOnceAndNotKept) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    RoundedSum sum(WireFormat::kInt8, {{0, 512}}, *world);
    Tensor errors = torch::zeros({512});
    Tensor values = torch::ones({512});
    if (world->rank() == 0)
      values.fill_(std::numeric_limits<float>::infinity());
    sum_rounded(sum, values, errors);
    EXPECT_FALSE(values.isfinite().any().item<bool>());
    EXPECT_TRUE(errors.isfinite().all().item<bool>());
    values = torch::ones({512});
    sum_rounded(sum, values, errors);
    EXPECT_TRUE(torch::allclose(values, torch::full({512}, 2.0), 0, 0.1));
  });
}

TEST(RoundedSum, SendsAQuarterInInt8AnEighthInInt4AndASixteenthInInt2) {
  run_ranks(4, [](const CommunicatorPtr& world) {
    for (const auto& [format, fraction] :
         {std::pair(WireFormat::kInt8, 0.25 * (1 + 4.0 / 256)),
          std::pair(WireFormat::kInt4, 0.125 * (1 + 8.0 / 128)),
          std::pair(WireFormat::kInt2, 0.0625 * (1 + 16.0 / 256))}) {
      constexpr int64_t kNumel = 4096;
      RoundedSum sum(format, {{0, kNumel}}, *world);
      world->clear_records();
      sum_rounded(sum, torch::ones({kNumel}), torch::zeros({kNumel}));
      int64_t bytes = 0;  // (R-1)/R each for an all-to-all and an all-gather
      for (const auto& record : world->records())
        bytes += record.bytes;
      EXPECT_EQ(bytes, std::lround(2 * fraction * 4 * kNumel));
      EXPECT_EQ(sum.wire_bytes(), bytes / 2);
    }
  });
}

}  // namespace
}  // namespace brigade

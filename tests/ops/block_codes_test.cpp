// Codes of blocks against bitsandbytes 0.50's map and against the nearest entry
// by trying all.
#include "brigade/ops/block_codes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/base/hash.h"

namespace brigade::ops {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr Kernels kCodecs[] = {Kernels::kCpu, Kernels::kAten};
constexpr torch::ScalarType kMaps[] = {torch::kChar, torch::kByte};

uint64_t hash_of(const void* data, size_t size_bytes) {
  return fnv1a_64({static_cast<const char*>(data), size_bytes});
}

// Seven decades, either sign; for unsigned codes its squares.
Tensor values_for(torch::ScalarType codes) {
  const Tensor i = torch::arange(1000, torch::kDouble);
  const Tensor x =
      (torch::sin(0.7 * i * i + 0.1) * torch::pow(10.0, -i.remainder(7)))
          .to(torch::kFloat);
  return codes == torch::kChar ? x : x * x;
}

struct Blocks {
  Blocks(const Tensor& values, torch::ScalarType dtype, Kernels kernels)
      : codes(torch::empty_like(values, dtype)),
        scales(torch::empty({count_blocks(values.numel())})) {
    encode_blocks(values, codes, scales, kernels);
  }
  Tensor codes;
  Tensor scales;
};

// Entries by their numbers, as bitsandbytes stores them.
Tensor entries_of(const Tensor& codes) {
  return codes.scalar_type() == torch::kChar
             ? (codes.to(torch::kShort) + 128).to(torch::kByte)
             : codes;
}

TEST(BlockCodes, TheMapIsBitsandbytes) {
  // FNV-1a of the bytes of functional.create_dynamic_map(signed).
  const auto hash = [](torch::ScalarType codes) {
    const auto& map = dynamic_map(codes);
    return hash_of(map.data(), sizeof(map));
  };
  EXPECT_EQ(hash(torch::kChar), 0xd677f22a96665bc4ULL);
  EXPECT_EQ(hash(torch::kByte), 0x43811b16730a873eULL);
}

TEST(BlockCodes, AreThoseOfTheNearestEntries) {
  // Hashes of the argmin over bitsandbytes' map, as its kernel for any device
  // computes it.
  for (const Kernels kernels : kCodecs) {
    const Blocks with_sign(values_for(torch::kChar), torch::kChar, kernels);
    const Tensor entries = entries_of(with_sign.codes);
    EXPECT_EQ(hash_of(entries.data_ptr(), 1000), 0x4679fd1f15c5090ULL);
    const Blocks without(values_for(torch::kByte), torch::kByte, kernels);
    EXPECT_EQ(hash_of(without.codes.data_ptr(), 1000), 0xbfdc454830a446d3ULL);
    EXPECT_EQ(without.scales.numel(), 4);
    EXPECT_FLOAT_EQ(without.scales[3].item<float>(), 0.9960825443F);
  }
}

// How many middles of two entries are below each value of a block, the first of
// which is the largest: a map's kernels as one line of the standard library.
std::vector<uint8_t> naive_entries(
    const std::vector<float>& values,
    torch::ScalarType dtype) {
  const auto& map = dynamic_map(dtype);
  std::vector<float> middles;
  for (size_t i = 0; i + 1 < map.size(); ++i)
    middles.push_back((map[i] + map[i + 1]) / 2);
  std::vector<uint8_t> entries;
  for (const float value : values)
    entries.push_back(static_cast<uint8_t>(
        std::lower_bound(
            middles.begin(), middles.end(), value / std::abs(values[0])) -
        middles.begin()));
  return entries;
}

void expect_naive(
    const std::vector<float>& values,
    torch::ScalarType dtype,
    Kernels kernels) {
  const Blocks blocks(torch::tensor(values), dtype, kernels);
  ASSERT_EQ(blocks.scales[0].item<float>(), std::abs(values[0]));
  const Tensor entries = entries_of(blocks.codes);
  const std::vector<uint8_t> wanted = naive_entries(values, dtype);
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(entries[static_cast<int64_t>(i)].item<uint8_t>(), int{wanted[i]})
        << values[i] << " of " << values[0];
}

TEST(BlockCodes, AreTheNearestEntriesAtMiddlesAndTheirNeighbours) {
  for (const Kernels kernels : kCodecs) {
    for (const auto dtype : kMaps) {
      const auto& map = dynamic_map(dtype);
      for (const float sign : {1.0F, -1.0F}) {
        for (size_t i = 0; i + 1 < map.size(); i += 50) {
          std::vector<float> values{sign, 0.0F, -0.0F, 1e-30F};
          for (size_t k = i; k < std::min<size_t>(i + 50, 255); ++k) {
            const float middle = sign * (map[k] + map[k + 1]) / 2;
            for (const float to : {-2.0F, middle, 2.0F})
              values.push_back(std::nextafter(middle, to));
          }
          expect_naive(values, dtype, kernels);
        }
      }
    }
  }
}

TEST(BlockCodes, AreTheNearestEntriesInBlocksOfAnyLength) {
  for (const Kernels kernels : kCodecs) {
    for (const auto dtype : kMaps) {
      for (int numel = 1; numel <= 256; numel += numel < 40 ? 1 : 27) {
        std::vector<float> values{static_cast<float>(numel) * 0.37F};
        for (int i = 1; i < numel; ++i)
          values.push_back(
              values[0] *
              static_cast<float>(std::sin(i * i) * std::pow(10.0, -(i % 8))));
        expect_naive(values, dtype, kernels);
      }
    }
  }
}

TEST(BlockCodes, ComeBackAsEntriesTimesTheScale) {
  for (const Kernels kernels : kCodecs) {
    for (const auto dtype : kMaps) {
      const Blocks blocks(values_for(dtype), dtype, kernels);
      const Tensor back = decode_blocks(blocks.codes, blocks.scales, kernels);
      const Tensor entries = entries_of(blocks.codes);
      for (int64_t i = 0; i < back.numel(); ++i)
        ASSERT_EQ(
            back[i].item<float>(),
            dynamic_map(dtype)[entries[i].item<uint8_t>()] *
                blocks.scales[i / kBlockNumel].item<float>());
    }
  }
}

TEST(BlockCodes, AreTheSameForRecodableValues) {
  torch::manual_seed(1);
  for (const Kernels kernels : kCodecs) {
    for (const auto dtype : kMaps) {
      // Extremes of either sign, and scales from huge to hardly any.
      Tensor values =
          torch::randn({60, kBlockNumel}) *
          torch::pow(10.0F, torch::arange(60) - 30.0F).view({-1, 1});
      if (dtype == torch::kByte)
        values = values.abs();
      values = values.view({-1}).narrow(0, 0, 60 * kBlockNumel - 100);
      const Blocks blocks(values, dtype, kernels);
      const Blocks again(
          recodable_values(blocks.codes, blocks.scales, kernels),
          dtype,
          kernels);
      EXPECT_TRUE(torch::equal(again.codes, blocks.codes));
      EXPECT_TRUE(torch::equal(again.scales, blocks.scales));
    }
  }
}

TEST(BlockCodes, TinyValuesBecomeZerosAndNonFiniteOnesSpoilTheirBlock) {
  for (const Kernels kernels : kCodecs) {
    const Blocks tiny(torch::full({300}, 1e-38F), torch::kChar, kernels);
    EXPECT_EQ(
        decode_blocks(tiny.codes, tiny.scales).abs().max().item<float>(), 0);
    for (const float bad :
         {std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      Tensor values = torch::ones({300});
      values[7] = bad;
      const Blocks blocks(values, torch::kByte, kernels);
      const Tensor back = decode_blocks(blocks.codes, blocks.scales);
      EXPECT_TRUE(
          back.narrow(0, 0, 256).isfinite().logical_not().all().item<bool>());
      EXPECT_TRUE(torch::equal(back.narrow(0, 256, 44), torch::ones({44})));
    }
  }
}

TEST(BlockCodes, AMissingScaleIsNamed) {
  EXPECT_THAT(
      [&] {
        decode_blocks(torch::zeros({300}, torch::kByte), torch::zeros({1}));
      },
      ThrowsMessage<Error>(HasSubstr("for each 256")));
}

}  // namespace
}  // namespace brigade::ops

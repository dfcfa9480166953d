#include "brigade/ops/erasable_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

namespace brigade::ops {
namespace {

// Pages of the tensor that are in memory.
size_t resident_pages(const torch::Tensor& tensor) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((tensor.nbytes() + page - 1) / page);
  EXPECT_EQ(::mincore(tensor.data_ptr(), tensor.nbytes(), pages.data()), 0);
  size_t count = 0;
  for (const unsigned char state : pages)
    count += state & 1U;
  return count;
}

TEST(ErasableMemory, ErasesARangeAndNothingBesideIt) {
  const int64_t numel = 100003;
  const auto memory = make_erasable(numel, torch::kFloat);
  EXPECT_EQ(memory.abs().sum().item<float>(), 0);
  for (const auto& [begin, length] : std::vector<std::pair<int64_t, int64_t>>{
           {0, numel}, {1, 5}, {1000, 90001}, {7, 1024}, {numel - 3, 3}}) {
    memory.fill_(3);
    erase(memory.narrow(0, begin, length));
    EXPECT_EQ(memory.narrow(0, begin, length).abs().sum().item<float>(), 0);
    EXPECT_EQ(memory.eq(3).sum().item<int64_t>(), numel - length) << begin;
  }
}

TEST(ErasableMemory, GivesPagesBack) {
  const auto memory = make_erasable(1 << 20, torch::kFloat);
  EXPECT_EQ(resident_pages(memory), 0U);
  memory.fill_(1);
  EXPECT_EQ(resident_pages(memory), 1024U);
  erase(memory);
  EXPECT_EQ(resident_pages(memory), 0U);
  memory.narrow(0, 0, 10).add_(1);
  EXPECT_EQ(memory.sum().item<float>(), 10);
}

TEST(ErasableMemory, CanBeEmpty) {
  EXPECT_EQ(make_erasable(0, torch::kFloat).numel(), 0);
}

}  // namespace
}  // namespace brigade::ops

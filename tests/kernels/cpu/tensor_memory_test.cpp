#include "brigade/kernels/cpu/tensor_memory.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/types.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "brigade/kernels/cpu/product.h"

namespace brigade::ops {
namespace {

// Runs in its own process, because the allocator stays until the end.
void check_memory() {
  set_up_tensor_memory();
  // An equal tensor lies where one was freed, with others on both sides.
  std::vector<torch::Tensor> tensors;
  for (int i = 0; i < 3; ++i)
    tensors.push_back(torch::zeros({300'000}));
  const void* freed = tensors[1].data_ptr();
  tensors[1].reset();
  const torch::Tensor again = torch::zeros({300'000});
  if (again.data_ptr() != freed)
    std::exit(1);
  for (const int64_t numel : {0, 1, 15, 16, 17, 4096, 10'000'000}) {
    const torch::Tensor tensor = torch::ones({numel});
    if (reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64 != 0)
      std::exit(2);
    // Made larger by libtorch itself, from the same allocator.
    torch::Tensor larger = torch::ones({numel});
    larger.resize_({2 * numel + 1});
    if (larger.narrow(0, 0, numel).sum().item<float>() !=
        tensor.sum().item<float>())
      std::exit(3);
  }
  try {
    torch::empty({std::numeric_limits<int64_t>::max() / 8}, torch::kDouble);
    std::exit(4);
  } catch (const c10::Error& error) {
    if (std::string(error.what()).find("not enough memory") ==
        std::string::npos)
      std::exit(5);
  }
  // libtorch's own products take memory without a tensor around it.
  c10::Allocator* allocator = c10::GetCPUAllocator();
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100'000}}) {
    void* memory = allocator->raw_allocate(bytes);
    if (reinterpret_cast<uintptr_t>(memory) % 64 != 0)
      std::exit(6);
    allocator->raw_deallocate(memory);
  }
  std::exit(0);
}

// Products of a training step, with small allocations that outlive them in
// between. glibc before 2.38 finds no room for aligned memory where it freed as
// much, so that a product that asks for some makes the heap grow without end.
void check_products() {
#ifdef __GLIBC__
  set_up_tensor_memory();
  std::vector<std::vector<char>> small(100);
  size_t count = 0;
  const auto remember = [&] {
    ++count;
    small[count % small.size()] = std::vector<char>(count * 97 % 900 + 1);
  };
  const auto step = [&](torch::ScalarType dtype) {
    const torch::Tensor x = torch::ones({512, 288}, dtype);
    const torch::Tensor w = torch::ones({864, 288}, dtype);
    const torch::Tensor y = torch::empty({512, 864}, dtype);
    const torch::Tensor dx = torch::empty({512, 288}, dtype);
    const torch::Tensor dw = torch::zeros({864, 288});
    for (int i = 0; i < 7; ++i)
      remember();
    product(x, w.t(), y);
    remember();
    product(y, w, dx);
    remember();
    product(y.t(), x, dw, Destination::kAdd);
  };
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    for (int i = 0; i < 20; ++i)
      step(dtype);
    const size_t before = ::mallinfo2().arena;
    for (int i = 0; i < 200; ++i)
      step(dtype);
    constexpr size_t kGrowth = 1 << 20;
    if (::mallinfo2().arena > before + kGrowth) {
      std::fprintf(
          stderr,
          "the heap grew from %zu to %zu bytes\n",
          before,
          ::mallinfo2().arena);
      std::exit(1);
    }
  }
#endif
  std::exit(0);
}

TEST(TensorMemoryDeathTest, ProductsLeaveTheHeapAsItWas) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer brings an allocator of its own";
#endif
  if (onednn_multiplies())
    GTEST_SKIP() << "oneDNN has products of its own for this processor, which "
                    "work in the caller's memory";
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(check_products(), ::testing::ExitedWithCode(0), "");
}

TEST(TensorMemoryDeathTest, FitsWhereAnEqualTensorWasFreed) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer brings an allocator of its own";
#endif
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(check_memory(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace brigade::ops

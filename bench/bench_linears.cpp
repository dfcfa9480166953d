// What do the three products of a linear cost, as the step computes them and by
// oneDNN, with the operands in cache and with them in memory, where a step
// leaves them? Without AVX512 BLAS takes oneDNN's place, in float32 and on
// OPENBLAS_NUM_THREADS threads. Beside them what the core's multiply-adds in
// float32 reach.
//
//   build/release/bench_linears [THREADS [TOKENS [bf16|fp32]]]  # 1 1024 bf16
//   BRIGADE_BENCH_TARGET=AVX2 DNNL_MAX_CPU_ISA=AVX2             # as if that
//                                                               # were all
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include "bench/arguments.h"
#include "bench/fma/fma_rate.h"
#include "bench/step_shapes.h"
#include "brigade/kernels/cpu/product.h"
#include "brigade/kernels/cpu/tensor_memory.h"
#include "brigade/kernels/cpu/tile_product.h"
#include "brigade/metrics/clock.h"
#include "brigade/ops/linear.h"

namespace brigade::bench {
namespace {

using torch::Tensor;

constexpr int kRuns = 9;
constexpr int64_t kFlushedBytes = 64 << 20;

// GFLOP/s, of the median of kRuns.
double rate(double flops, bool in_cache, const std::function<void()>& product) {
  Tensor flushed = torch::zeros({kFlushedBytes}, torch::kByte);
  product();
  std::vector<int64_t> times;
  for (int i = 0; i < kRuns; ++i) {
    if (!in_cache)
      flushed.fill_(i);
    const int64_t begin = steady_now_ns();
    product();
    times.push_back(steady_now_ns() - begin);
  }
  std::sort(times.begin(), times.end());
  return flops / static_cast<double>(times[times.size() / 2]);
}

// The products that ours are compared with.
void other_product(
    const Tensor& a,
    const Tensor& b,
    Tensor c,
    ops::Destination destination = ops::Destination::kOverwrite) {
  if (ops::onednn_multiplies()) {
    ops::product(a, b, c, destination);
    return;
  }
  const Tensor left = a.to(torch::kFloat);
  const Tensor right = b.to(torch::kFloat);
  if (destination == ops::Destination::kAdd)
    c.addmm_(left, right);
  else
    c.copy_(at::mm(left, right));
}

void compare(int64_t tokens, int64_t in, int64_t out, torch::ScalarType dtype) {
  const torch::NoGradGuard no_grad;
  const auto random = [dtype](at::IntArrayRef sizes) {
    return (torch::rand(sizes) - 0.5).to(dtype);
  };
  const Tensor x = random({tokens, in});
  const Tensor w = random({out, in});
  const Tensor y = random({tokens, out});
  const Tensor dx = random({tokens, in});
  const Tensor dw = torch::zeros({out, in});
  const double flops = 2.0 * static_cast<double>(tokens * in * out);
  const auto line = [&](const char* name,
                        const std::function<void()>& ours,
                        const std::function<void()>& onednn) {
    fmt::print(
        "{:>5} to {:>5} {:<16} {:>8.0f} {:>8.0f} {:>8.0f} {:>8.0f}\n",
        in,
        out,
        name,
        rate(flops, true, ours),
        rate(flops, true, onednn),
        rate(flops, false, ours),
        rate(flops, false, onednn));
  };
  line(
      "forward",
      [&] { ops::linear(x, w, Tensor()); },
      [&] { other_product(x, w.t(), y); });
  line(
      "input gradient",
      [&] { ops::linear_backward_input(y, w); },
      [&] { other_product(y, w, dx); });
  line(
      "weight gradient",
      [&] { ops::linear_backward_weight(y, x, dw); },
      [&] { other_product(y.t(), x, dw, ops::Destination::kAdd); });
}

int run(int argc, char** argv) {
  at::set_num_threads(argc > 1 ? positive_number("THREADS", argv[1]) : 1);
  const int64_t tokens = argc > 2 ? positive_number("TOKENS", argv[2]) : 1024;
  const bool is_wide = argc > 3 && std::string_view(argv[3]) == "fp32";
  const auto dtype = is_wide ? torch::kFloat : torch::kBFloat16;
  const char* other = ops::onednn_multiplies() ? "oneDNN" : "BLAS";
  fmt::print(
      "{}, {} tokens, {} threads, tiles: {}; GFLOP/s; float32 multiply-adds "
      "of one thread: {:.0f}\n"
      "{:<31} {:>17} {:>17}\n{:<31} {:>8} {:>8} {:>8} {:>8}\n",
      is_wide ? "fp32" : "bf16",
      tokens,
      at::get_num_threads(),
      ops::tile_product_instructions(),
      fma_gflops(),
      "",
      "in cache",
      "in memory",
      "linear",
      "ours",
      other,
      "ours",
      other);
  for (const ModelShape& s : kShapes) {
    if (s.accumulation == 1 && s.hidden == kShapes[0].hidden)
      continue;  // the first shape's widths again
    compare(tokens, s.hidden, s.qkv_width(), dtype);
    compare(tokens, s.hidden, s.hidden, dtype);
    compare(tokens, s.hidden, 2 * s.ffn, dtype);
    compare(tokens, s.ffn, s.hidden, dtype);
  }
  return 0;
}

}  // namespace
}  // namespace brigade::bench

int main(int argc, char** argv) {
  return brigade::bench::exit_code_of([&] {
    brigade::bench::restrict_target();
    brigade::ops::set_up_tensor_memory();
    return brigade::bench::run(argc, argv);
  });
}

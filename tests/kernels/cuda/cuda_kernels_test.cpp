// The kernels of NVIDIA's GPUs against ATen's in float64 on the CPU, from
// operands of the same values. Without a GPU they skip.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <string>
#include <vector>

#include "brigade/comm/gpus.h"
#include "brigade/kernels/aten/ragged_flash.h"
#include "brigade/ops/expert_rows.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/libtorch_versions.h"
#include "brigade/ops/split_master.h"
#include "tests/support/compare.h"
#include "tests/support/leaf.h"

namespace brigade::ops {
namespace {

using testing::expect_close;
using testing::leaf;

const torch::Device kGpu(torch::kCUDA, 0);

class CudaKernels : public ::testing::TestWithParam<torch::ScalarType> {
 protected:
  void SetUp() override {
    if (cuda_kernels() == nullptr || find_gpus().count == 0)
      GTEST_SKIP() << "no GPU, or a build without CUDA";
    torch::manual_seed(1);
  }
  static double bound() { return GetParam() == torch::kFloat ? 2e-6 : 4e-3; }
  // Normal numbers that the dtype has, on the CPU in float64.
  static Tensor random(const std::vector<int64_t>& sizes) {
    return torch::randn(sizes).to(GetParam()).to(torch::kDouble);
  }
  static Tensor on_gpu(const Tensor& x) {
    return x.to(
        kGpu, x.scalar_type() == torch::kDouble ? GetParam() : x.scalar_type());
  }
  static Tensor wide_on_gpu(const Tensor& x) {
    return x.to(kGpu, torch::kFloat);
  }
  static void expect_equal(
      const Tensor& gpu,
      const Tensor& expected,
      const std::string& what) {
    expect_close(gpu.cpu(), expected, bound(), what);
  }
};

const std::vector<std::vector<int64_t>> kShapes =
    {{3, 7, 64}, {1, 5, 576}, {300, 2048}, {2, 3, 50}, {7, 8192}, {2, 12288}};

TEST_P(CudaKernels, RmsNormWithItsResidualForwardAndBackward) {
  for (const auto& shape : kShapes) {
    for (const bool has_residual : {false, true}) {
      const std::string what = "columns " + std::to_string(shape.back());
      const Tensor x = random(shape);
      const Tensor residual = has_residual ? random(shape) : Tensor();
      const Tensor weight = random({shape.back()});
      const RmsNormInputs expected_of{x, residual, weight, 1e-5, 0.5};
      RmsNormInputs inputs{on_gpu(x), {}, on_gpu(weight), 1e-5, 0.5};
      if (has_residual)
        inputs.residual = on_gpu(residual);
      const auto result = cuda_kernels()->rms_norm(inputs);
      const auto expected = aten_kernels().rms_norm(expected_of);
      expect_equal(result.sum, expected.sum, what + ": sum");
      expect_equal(result.rstd, expected.rstd, what + ": rstd");
      expect_equal(result.normed, expected.normed, what + ": normed");

      const Tensor dnormed = random(shape);
      const Tensor dsum = has_residual ? random(shape) : Tensor();
      const Tensor dweight = torch::ones({shape.back()}, torch::kDouble);
      const Tensor dweight_on_gpu = wide_on_gpu(dweight);
      const Tensor summed = result.sum.to(torch::kCPU, torch::kDouble);
      const Tensor dx = cuda_kernels()->rms_norm_backward(
          {on_gpu(dnormed),
           has_residual ? on_gpu(dsum) : Tensor(),
           result.sum,
           inputs.weight,
           result.rstd,
           dweight_on_gpu,
           0.5});
      const Tensor expected_dx = aten_kernels().rms_norm_backward(
          {dnormed,
           dsum,
           summed,
           weight,
           result.rstd.to(torch::kCPU, torch::kDouble),
           dweight,
           0.5});
      expect_equal(dx, expected_dx, what + ": dx");
      expect_equal(dweight_on_gpu, dweight, what + ": dweight");
    }
  }
}

TEST_P(CudaKernels, SwigluOfHalvesOfOneTensor) {
  for (const int64_t columns : {64, 1536, 8192, 50}) {
    const Tensor both = random({33, 2 * columns});
    const Tensor on_device = on_gpu(both);
    const auto gate = [&](const Tensor& x) { return x.narrow(1, 0, columns); };
    const auto up = [&](const Tensor& x) {
      return x.narrow(1, columns, columns);
    };
    const std::string what = "columns " + std::to_string(columns);
    expect_equal(
        cuda_kernels()->swiglu(gate(on_device), up(on_device)),
        aten_kernels().swiglu(gate(both), up(both)),
        what);
    const Tensor dout = random({33, columns});
    const Tensor gradient = at::full_like(on_device, std::nan(""));
    const Tensor expected = at::empty_like(both);
    cuda_kernels()->swiglu_backward(
        {on_gpu(dout),
         gate(on_device),
         up(on_device),
         gate(gradient),
         up(gradient)});
    aten_kernels().swiglu_backward(
        {dout, gate(both), up(both), gate(expected), up(expected)});
    expect_equal(gradient, expected, what + ", backward");
  }
}

TEST_P(CudaKernels, RotateOfHeadsInsideAWiderTensor) {
  for (const int64_t head_dim : {16, 64, 128, 12}) {
    const Tensor x = random({2, 9, 5, head_dim});
    const Tensor angles = torch::randn({9, head_dim / 2});
    const RotaryTable table{angles.cos(), angles.sin()};
    const RotaryTable on_device{table.cos.to(kGpu), table.sin.to(kGpu)};
    for (const auto direction :
         {RotaryDirection::kForward, RotaryDirection::kBackward}) {
      const Tensor some = on_gpu(x).narrow(2, 1, 3);
      const Tensor y = at::empty(some.sizes(), some.options());
      const Tensor expected = at::empty({2, 9, 3, head_dim}, x.options());
      cuda_kernels()->rotate({y, some, on_device, direction});
      aten_kernels().rotate({expected, x.narrow(2, 1, 3), table, direction});
      expect_equal(y, expected, "head_dim " + std::to_string(head_dim));
    }
  }
}

TEST_P(CudaKernels, TheHeadsLossAndGradients) {
  constexpr int64_t kRows = 37;
  constexpr int64_t kHidden = 64;
  constexpr int64_t kValid = 1003;
  constexpr int64_t kVocabulary = 1024;
  const Tensor hidden = random({kRows, kHidden});
  const Tensor weight = random({kVocabulary, kHidden});
  Tensor targets = torch::randint(kValid, {kRows}, torch::kLong);
  targets[3] = -1;
  const Tensor factor = torch::rand({kRows}, torch::kDouble);
  const auto run = [&](const KernelSet& kernels,
                       const torch::Device& device,
                       torch::ScalarType dtype,
                       torch::ScalarType wide) {
    const auto type = torch::dtype(wide).device(device);
    const HeadInputs inputs{
        hidden.to(device, dtype),
        weight.to(device, dtype),
        targets.to(device),
        kValid};
    const HeadStatistics statistics{
        torch::empty({kRows}, type), torch::empty({2, kRows}, type)};
    const Tensor dhidden =
        torch::empty({kRows, kHidden}, inputs.hidden.options());
    const Tensor dweight = torch::ones({kVocabulary, kHidden}, type);
    const auto chunk = kernels.make_head_chunk(inputs, statistics);
    // As if another rank had a larger logit.
    Tensor(statistics.maxima).add_(0.5);
    chunk->sum_exponentials();
    const Tensor sums = statistics.sums.clone();
    chunk->add_gradients(factor.to(device, wide), dhidden, dweight);
    return std::vector<Tensor>{statistics.maxima, sums, dhidden, dweight};
  };
  const auto on_device = run(*cuda_kernels(), kGpu, GetParam(), torch::kFloat);
  const auto expected =
      run(aten_kernels(), torch::kCPU, torch::kDouble, torch::kDouble);
  for (size_t i = 0; i < expected.size(); ++i)
    expect_equal(on_device[i], expected[i], "result " + std::to_string(i));
}

TEST_P(CudaKernels, AdamWStepsAsInFloat64) {
  const bool is_split = GetParam() == torch::kBFloat16;
  // A piece that begins at any element, and one of whole packs.
  for (const int64_t first : {0, 3}) {
    constexpr int64_t kNumel = 10000;
    const Tensor master = torch::randn({kNumel});
    const Tensor gradient = torch::randn({kNumel});
    const Tensor exp_avg = torch::randn({kNumel});
    const Tensor exp_avg_sq = torch::rand({kNumel}) * 1e-4;
    const auto piece = [&](const Tensor& x) {
      return x.narrow(0, first, kNumel - 2 * first);
    };
    const AdamWStep step{
        .lr = 0.01,
        .beta2 = 0.9999,
        .weight_decay = 0.1,
        .step = 3,
        .grad_scale = 0.25};
    AdamWTensors on_device{
        gradient.to(kGpu),
        exp_avg.to(kGpu),
        exp_avg_sq.to(kGpu),
        master.to(kGpu),
        {}};
    if (is_split) {
      on_device.weight =
          at::empty({kNumel}, at::device(kGpu).dtype(GetParam()));
      on_device.master_low =
          at::empty({kNumel}, at::device(kGpu).dtype(torch::kShort));
      aten_kernels().split_master(
          master.to(kGpu), on_device.weight, on_device.master_low);
    }
    cuda_kernels()->adamw_step(
        step,
        {piece(on_device.main_grad),
         piece(on_device.exp_avg),
         piece(on_device.exp_avg_sq),
         piece(on_device.weight),
         is_split ? piece(on_device.master_low) : Tensor()},
        AfterRead::kZero);
    const AdamWTensors expected{
        piece(gradient.to(torch::kDouble)),
        piece(exp_avg.to(torch::kDouble)),
        piece(exp_avg_sq.to(torch::kDouble)),
        piece(master.to(torch::kDouble)),
        {}};
    aten_kernels().adamw_step(step, expected, AfterRead::kKeep);
    const Tensor stepped =
        is_split
            ? aten_kernels().join_master(on_device.weight, on_device.master_low)
            : on_device.weight;
    const auto expect_piece =
        [&](const Tensor& x, const Tensor& of, const std::string& what) {
          expect_close(piece(x).cpu(), of, 1e-6, what);
        };
    expect_piece(stepped, expected.weight, "weight");
    expect_piece(on_device.exp_avg, expected.exp_avg, "exp_avg");
    expect_piece(on_device.exp_avg_sq, expected.exp_avg_sq, "exp_avg_sq");
    EXPECT_EQ(piece(on_device.main_grad).abs().sum().item<float>(), 0);
    // Its neighbours are not touched.
    if (first > 0) {
      EXPECT_TRUE(on_device.exp_avg.cpu()
                      .narrow(0, 0, first)
                      .equal(exp_avg.narrow(0, 0, first)));
    }
    if (is_split) {
      const Tensor weight = at::empty_like(on_device.weight);
      const Tensor low = at::empty_like(on_device.master_low);
      aten_kernels().split_master(stepped, weight, low);
      EXPECT_TRUE(weight.equal(on_device.weight));
      EXPECT_TRUE(low.equal(on_device.master_low));
    }
  }
}

TEST_P(CudaKernels, SumOfSquaresIsNotFiniteWhereAnElementIsNot) {
  const Tensor values = torch::randn({1'000'003}) * 1e10;
  const Tensor on_device = values.to(kGpu);
  expect_close(
      cuda_kernels()->sum_of_squares(on_device).cpu(),
      values.to(torch::kDouble).square().sum(),
      1e-12,
      "sum");
  on_device[77] = std::nan("");
  EXPECT_TRUE(
      std::isnan(cuda_kernels()->sum_of_squares(on_device).item<double>()));
}

// Tokens with three of five experts each.
ExpertOrder some_experts(int64_t tokens) {
  return order_by_expert(
      choose_experts(torch::randn({tokens, 5}), {.per_token = 3}),
      {0, 1, 2, 3, 4});
}

TEST_P(CudaKernels, RowsOfTheExpertsThatHaveRoom) {
  const Tensor experts =
      choose_experts(torch::randn({40, 5}), {.per_token = 3});
  const Tensor x = random({40, 64});
  for (const int64_t capacity : {9, 0}) {
    const Tensor is_kept =
        capacity > 0 ? within_capacity(experts.unsqueeze(0), 5, capacity)[0]
                     : torch::zeros({40, 3}, torch::kBool);
    const ExpertOrder order =
        order_by_expert(experts, {0, 1, 2, 3, 4}, is_kept);
    expect_equal(
        cuda_kernels()->rows_of_pairs(
            on_gpu(x),
            {order.pair_of_row.to(kGpu), order.row_of_pair.to(kGpu)},
            {}),
        aten_kernels().rows_of_pairs(x, order, {}),
        "rows");
  }
}

TEST_P(CudaKernels, RowsOfExpertsTheirSumsAndProducts) {
  for (const int64_t columns : {64, 2048, 50}) {
    const ExpertPairs pairs = some_experts(70);
    const ExpertPairs on_device{
        pairs.pair_of_row.to(kGpu), pairs.row_of_pair.to(kGpu)};
    const Tensor x = random({70, columns});
    const Tensor rows = random({210, columns});
    const Tensor weights = torch::rand({70, 3});
    const std::string what = std::to_string(columns) + " columns";
    for (const Tensor& of : {Tensor(), weights}) {
      const Tensor wide = of.defined() ? of.to(torch::kDouble) : of;
      const Tensor there = of.defined() ? of.to(kGpu) : of;
      expect_equal(
          cuda_kernels()->rows_of_pairs(on_gpu(x), on_device, there),
          aten_kernels().rows_of_pairs(x, pairs, wide),
          what + ": rows");
      expect_equal(
          cuda_kernels()->sum_of_pairs(on_gpu(rows), on_device, there),
          aten_kernels().sum_of_pairs(rows, pairs, wide),
          what + ": sum");
    }
    // Also one row in the place of all, as a sum's gradient is.
    for (const Tensor& dout : {x, x.narrow(0, 0, 1).expand({70, columns})})
      expect_close(
          cuda_kernels()
              ->products_of_pairs(on_gpu(rows), on_gpu(dout), on_device)
              .cpu(),
          aten_kernels().products_of_pairs(rows, dout, pairs),
          1e-5,
          what + ": products");
  }
}

TEST_P(CudaKernels, LinearsOfExperts) {
  const Tensor weights = random({4, 96, 64});
  const Tensor x = random({60, 64});
  const Tensor dy = random({60, 96});
  const std::vector<int64_t> counts = {17, 0, 30, 13};
  const auto run = [&](const KernelSet& kernels, const auto& to) {
    const Tensor all = to(weights);
    const Tensor y = torch::empty({60, 96}, all.options());
    const Tensor dx = torch::empty({60, 64}, all.options());
    const Tensor x_there = to(x);
    const Tensor dy_there = to(dy);
    std::vector<LinearOperands> forward;
    std::vector<LinearOperands> backward;
    int64_t begin = 0;
    for (int64_t e = 0; e < 4; ++e) {
      const auto of = [&](const Tensor& rows) {
        return rows.narrow(0, begin, counts[static_cast<size_t>(e)]);
      };
      if (counts[static_cast<size_t>(e)] > 0) {
        forward.push_back({of(x_there), all[e], of(y)});
        backward.push_back({of(dx), all[e], of(dy_there)});
      }
      begin += counts[static_cast<size_t>(e)];
    }
    kernels.linears(forward);
    kernels.linear_input_grads(backward);
    return std::vector<Tensor>{y, dx};
  };
  const auto on_device = run(*cuda_kernels(), on_gpu);
  const auto expected =
      run(aten_kernels(), [](const Tensor& rows) { return rows; });
  const double most = GetParam() == torch::kFloat ? 1e-5 : bound();
  expect_close(on_device[0].cpu(), expected[0], most, "y");
  expect_close(on_device[1].cpu(), expected[1], most, "dx");
}

// Two rows of documents; the first document of the second row began before it.
Tensor some_documents() {
  const Tensor starts = torch::zeros({2, 48}, torch::kLong);
  starts[0].narrow(0, 5, 30).fill_(5);
  starts[0].narrow(0, 35, 13).fill_(35);
  starts[1].narrow(0, 0, 20).fill_(-4);
  starts[1].narrow(0, 20, 28).fill_(20);
  return starts;
}

// Through autograd, as models call it, rotated, heads shared: one piece, and
// the sequences of a window and of documents.
TEST_P(CudaKernels, AttentionThatIsRotated) {
  const Tensor q = random({2, 48, 6, 64});
  const Tensor k = random({2, 48, 2, 64});
  const Tensor v = random({2, 48, 2, 64});
  const Tensor dout = random({2, 48, 6, 64});
  const Tensor angles = torch::randn({48, 32});
  const auto run = [&](const torch::Device& device,
                       torch::ScalarType dtype,
                       AttentionOptions options) {
    std::vector<Tensor> leaves;
    for (const Tensor& x : {q, k, v})
      leaves.push_back(leaf(x.to(device, dtype)));
    options.query_rotary =
        RotaryTable{angles.cos().to(device), angles.sin().to(device)};
    if (options.document_starts.defined())
      options.document_starts = options.document_starts.to(device);
    const auto result = attention(leaves[0], leaves[1], leaves[2], options);
    result.out.backward(dout.to(device, dtype));
    return std::vector<Tensor>{
        result.out.detach(),
        leaves[0].grad(),
        leaves[1].grad(),
        leaves[2].grad()};
  };
  const double most = GetParam() == torch::kFloat ? 1e-5 : 2e-2;
  for (const bool has_window : {false, true}) {
    for (const bool has_documents : {false, true}) {
      AttentionOptions options;
      if (has_window)
        options.sliding_window = 11;
      if (has_documents)
        options.document_starts = some_documents();
      const auto on_device = run(kGpu, GetParam(), options);
      const auto expected = run(torch::kCPU, torch::kDouble, options);
      for (size_t i = 0; i < expected.size(); ++i)
        expect_close(
            on_device[i].cpu(),
            expected[i],
            most,
            std::string(has_window ? "window" : "") +
                (has_documents ? " documents" : "") + ": result " +
                std::to_string(i));
    }
  }
}

// Not by blocks of all scores.
TEST_P(CudaKernels, DocumentsAreTheFlashKernels) {
  if (GetParam() != torch::kBFloat16)
    GTEST_SKIP() << "flash attention takes bf16";
  const auto heads = [](int64_t count) {
    return on_gpu(random({2, 48, count, 64}));
  };
  AttentionOptions options;
  options.document_starts = some_documents().to(kGpu);
  options.sliding_window = 11;
  const AttentionOperands operands{heads(6), heads(2), heads(2)};
  if (!has_flash_attention(
          operands.q.transpose(1, 2),
          operands.k.transpose(1, 2),
          operands.v.transpose(1, 2)))
    GTEST_SKIP() << "no flash attention on this GPU or in this libtorch";
  const AttentionResult result{
      torch::empty_like(operands.q),
      torch::empty({2, 6, 48}, operands.q.options().dtype(torch::kFloat))};
  ASSERT_TRUE(ragged_flash_forward(*cuda_kernels(), result, operands, options));
  EXPECT_TRUE(ragged_flash_backward(
      *cuda_kernels(),
      empty_attention_gradients(operands, torch::kBFloat16),
      {.operands = operands,
       .dout = heads(6),
       .lse = result.lse,
       .delta = {},
       .out = result.out},
      options));
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes,
    CudaKernels,
    ::testing::Values(torch::kFloat, torch::kBFloat16),
    [](const auto& dtype) {
      return std::string(dtype.param == torch::kFloat ? "float32" : "bfloat16");
    });

}  // namespace
}  // namespace brigade::ops

// What does each op of the training path cost, against the floor that its bytes
// and FLOPs set and against PyTorch's own ops? Floors use the memory bandwidth
// and the product rate measured in the same run.
//
//   build/release/bench_ops [THREADS] [SHAPE|optimizer]
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "bench/arguments.h"
#include "bench/openblas_threads.h"
#include "bench/step_shapes.h"
#include "brigade/kernels/cpu/product.h"
#include "brigade/kernels/cpu/tensor_memory.h"
#include "brigade/kernels/cpu/tile_product.h"
#include "brigade/ops/adamw.h"
#include "brigade/ops/attention.h"
#include "brigade/ops/block_codes.h"
#include "brigade/ops/cross_entropy.h"
#include "brigade/ops/embedding.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/newton_schulz.h"
#include "brigade/ops/rms_norm.h"
#include "brigade/ops/rotary.h"
#include "brigade/ops/stochastic_rounding.h"
#include "brigade/ops/swiglu.h"
#include "brigade/optim/adamw.h"

namespace brigade::bench {
namespace {

using torch::Tensor;

constexpr int kRuns = 7;

struct Machine {
  double bytes_per_ms;
  double flops_per_ms;
};

// A copy reads and writes; rates are medians.
Machine measure(torch::ScalarType dtype) {
  const Tensor from = torch::ones({1 << 25});
  Tensor to = torch::ones({1 << 25});
  const double copy_ms = median_ms(kRuns, [&] { to.copy_(from); });
  const Tensor a = torch::ones({1024, 512}).to(dtype);
  const Tensor b = torch::ones({512, 512}).to(dtype);
  const Tensor c = torch::empty({1024, 512}, dtype);
  const double product_ms =
      median_ms(kRuns * 3, [&] { ops::product(a, b.t(), c); });
  return {2.0 * 4 * (1 << 25) / copy_ms, 2.0 * 1024 * 512 * 512 / product_ms};
}

struct Row {
  std::string name;
  double bytes;
  double flops;
  std::function<void()> ours;
  std::function<void()> torchs;  // empty: has no counterpart
};

void print(const Machine& machine, const Row& row) {
  const double ours = median_ms(kRuns, row.ours);
  const double torchs = row.torchs ? median_ms(kRuns, row.torchs)
                                   : std::numeric_limits<double>::quiet_NaN();
  const double floor = std::max(
      row.bytes / machine.bytes_per_ms, row.flops / machine.flops_per_ms);
  fmt::print(
      "{:<30} {:>9.1f} {:>9.2f} {:>9.3f} {:>9.3f} {:>7.2f} {:>10.3f} "
      "{:>7.2f}\n",
      row.name,
      row.bytes / 1e6,
      row.flops / 1e9,
      floor,
      ours,
      floor / ours,
      torchs,
      torchs / ours);
}

void forward_alone(
    const Machine& machine,
    const std::string& name,
    double bytes,
    const std::function<void()>& ours,
    const std::function<void()>& torchs) {
  const torch::NoGradGuard no_grad;
  print(machine, {name, bytes, 0, ours, torchs});
}

// Forward alone, and forward with backward, of a function of leaves.
void both(
    const Machine& machine,
    const std::string& name,
    double bytes,
    double flops,
    const std::function<Tensor()>& ours,
    const std::function<Tensor()>& torchs,
    double flops_with_backward = 3 /* times forward's */) {
  const auto forward = [](const std::function<Tensor()>& op) {
    return [op] {
      const torch::NoGradGuard no_grad;
      op();
    };
  };
  const auto backward = [](const std::function<Tensor()>& op) {
    return [op] {
      const Tensor out = op();
      out.backward(torch::ones_like(out));
    };
  };
  print(machine, {name, bytes, flops, forward(ours), forward(torchs)});
  print(
      machine,
      {name + " + backward",
       3 * bytes,
       flops_with_backward * flops,
       backward(ours),
       backward(torchs)});
}

Tensor torchs_rotary(const Tensor& x, const ops::RotaryTable& table) {
  const auto both_halves = [&](const Tensor& half) {
    return torch::cat({half, half}, -1).unsqueeze(1).to(x.scalar_type());
  };
  const auto halves = x.chunk(2, -1);
  return x * both_halves(table.cos) +
         torch::cat({-halves[1], halves[0]}, -1) * both_halves(table.sin);
}

Tensor torchs_attention(Tensor q, Tensor k, Tensor v) {
  const int64_t tokens = q.size(1);
  const int64_t groups = q.size(2) / k.size(2);
  k = k.repeat_interleave(groups, 2);
  v = v.repeat_interleave(groups, 2);
  const Tensor hidden = torch::ones({tokens, tokens}, torch::kBool).triu(1);
  const Tensor scores =
      (torch::matmul(q.transpose(1, 2), k.permute({0, 2, 3, 1})) *
       (1.0 / std::sqrt(static_cast<double>(q.size(3)))))
          .masked_fill(hidden, -1e30);
  return torch::matmul(torch::softmax(scores, -1), v.transpose(1, 2));
}

// The ops of one model in one dtype.
struct Comparison {
  const ModelShape& shape;
  torch::ScalarType dtype;
  Machine machine;
  double size = dtype == torch::kBFloat16 ? 2 : 4;

  Tensor leaf(at::IntArrayRef sizes) const {
    return (torch::rand(sizes) - 0.5).to(dtype).requires_grad_(true);
  }
  // Bytes of one activation.
  double stream() const {
    return static_cast<double>(shape.tokens() * shape.hidden) * size;
  }
};

void compare_norms_and_swiglu(const Comparison& c) {
  const ModelShape& s = c.shape;
  const int64_t n = s.tokens();
  const Tensor x = c.leaf({n, s.hidden});
  const Tensor residual = c.leaf({n, s.hidden});
  const Tensor norm = c.leaf({s.hidden});
  const auto torchs_norm = [&](const Tensor& sum) {
    return sum * torch::rsqrt(sum.square().mean(-1, true) + 1e-5) * norm;
  };
  both(
      c.machine,
      "rms_norm",
      2 * c.stream(),
      0,
      [&] { return ops::rms_norm(x, norm, 1e-5); },
      [&] { return torchs_norm(x); });
  both(
      c.machine,
      "add_rms_norm",
      4 * c.stream(),
      0,
      [&] { return ops::add_rms_norm(x, residual, norm, 1e-5).first; },
      [&] { return torchs_norm(x + residual); });
  const Tensor gate_up = c.leaf({n, 2 * s.ffn});
  both(
      c.machine,
      "swiglu",
      static_cast<double>(3 * n * s.ffn) * c.size,
      0,
      [&] { return ops::swiglu(gate_up); },
      [&] {
        return torch::silu(gate_up.narrow(1, 0, s.ffn)) *
               gate_up.narrow(1, s.ffn, s.ffn);
      });
}

void compare_linears(const Comparison& c) {
  const ModelShape& s = c.shape;
  const int64_t n = s.tokens();
  const auto compare_linear = [&](const char* name, int64_t in, int64_t out) {
    const Tensor input = c.leaf({n, in});
    const Tensor weight = c.leaf({out, in});
    both(
        c.machine,
        std::string("linear ") + name,
        static_cast<double>(n * in + (n + in) * out) * c.size,
        2.0 * static_cast<double>(n * in * out),
        [&] { return ops::linear(input, weight); },
        [&] { return torch::linear(input, weight); });
  };
  compare_linear("q/k/v", s.hidden, s.qkv_width());
  compare_linear("o", s.heads * s.head_dim(), s.hidden);
  compare_linear("gate/up", s.hidden, 2 * s.ffn);
  compare_linear("down", s.ffn, s.hidden);
}

void compare_attention(const Comparison& c) {
  const ModelShape& s = c.shape;
  const int64_t n = s.tokens();
  const auto heads = [&](int64_t count) {
    return c.leaf({s.micro_batch, s.sequence, count, s.head_dim()});
  };
  const Tensor q = heads(s.heads);
  const Tensor k = heads(s.key_heads);
  const Tensor v = heads(s.key_heads);
  const ops::RotaryTable table = ops::make_rotary_table(
      torch::arange(s.sequence, torch::kLong), s.head_dim(), 10000.0);
  forward_alone(
      c.machine,
      "rotary",
      2.0 * static_cast<double>(q.numel() + k.numel()) * c.size,
      [&] { ops::rotary(q, k, table); },
      [&] {
        torchs_rotary(q, table);
        torchs_rotary(k, table);
      });
  both(
      c.machine,
      "attention",
      static_cast<double>(n * (s.qkv_width() + s.hidden)) * c.size,
      2.0 * static_cast<double>(n * s.sequence * s.hidden),
      [&] { return ops::attention(q, k, v).out; },
      [&] { return torchs_attention(q, k, v); },
      3.5);  // scores are made again
}

void compare_embedding_and_head(const Comparison& c) {
  const ModelShape& s = c.shape;
  const int64_t n = s.tokens();
  const Tensor x = c.leaf({n, s.hidden});
  const Tensor weight = c.leaf({s.vocabulary, s.hidden});
  const Tensor targets =
      torch::randint(s.vocabulary, {n}, torch::dtype(torch::kLong));
  forward_alone(
      c.machine,
      "embedding",
      2 * c.stream(),
      [&] { ops::embedding(targets, weight); },
      [&] { torch::embedding(weight, targets); });
  both(
      c.machine,
      "linear_cross_entropy",
      static_cast<double>(s.vocabulary * s.hidden) * c.size,
      2.0 * static_cast<double>(n * s.hidden * s.vocabulary),
      [&] { return ops::linear_cross_entropy(x, weight, targets); },
      [&] {
        return torch::nll_loss(
            torch::log_softmax(torch::linear(x, weight).to(torch::kFloat), -1),
            targets,
            {},
            at::Reduction::Sum);
      });
}

void compare(const ModelShape& s, torch::ScalarType dtype) {
  const Machine machine = measure(dtype);
  fmt::print(
      "\n{} {}, {} tokens, {} threads, tiles: {}; copy {:.1f} GB/s, products "
      "{:.0f} GFLOP/s\n{:<30} {:>9} {:>9} {:>9} {:>9} {:>7} {:>10} {:>7}\n",
      s.name,
      c10::toString(dtype),
      s.tokens(),
      at::get_num_threads(),
      ops::tile_product_instructions(),
      machine.bytes_per_ms / 1e6,
      machine.flops_per_ms / 1e6,
      "op",
      "MB",
      "GFLOP",
      "floor ms",
      "ours ms",
      "floor/",
      "torch ms",
      "torch/");
  const Comparison comparison{s, dtype, machine};
  compare_norms_and_swiglu(comparison);
  compare_linears(comparison);
  compare_attention(comparison);
  compare_embedding_and_head(comparison);
}

// What an optimizer's states in a byte or in bf16 cost beside its step. PyTorch
// has no codes; its rounding is to the nearest.
void compare_narrow_states(const Machine& machine, const Tensor& values) {
  const int64_t numel = values.numel();
  const Tensor codes = torch::empty({numel}, torch::kChar);
  const Tensor scales = torch::empty({count_blocks(numel)});
  const Tensor rounded = torch::empty({numel}, torch::kBFloat16);
  const auto n = static_cast<double>(numel);
  print(
      machine,
      {"encode_blocks",
       5 * n,
       0,
       [&] { ops::encode_blocks(values, codes, scales); },
       {}});
  print(
      machine,
      {"decode_blocks",
       5 * n,
       0,
       [&] { ops::decode_blocks(codes, scales); },
       {}});
  print(
      machine,
      {"round_stochastically",
       6 * n,
       0,
       [&] { ops::round_stochastically(values, rounded, {.key = 1}); },
       [&] { rounded.copy_(values); }});
}

void compare_optimizer() {
  const Machine machine = measure(torch::kFloat);
  constexpr int64_t kNumel = 24'000'000;
  const auto flat = [] { return torch::full({kNumel}, 0.01); };
  const Tensor gradient = flat();
  const Tensor master = flat();
  const Tensor first = flat();
  const Tensor second = flat();
  const Tensor weight = torch::ones({kNumel}, torch::kBFloat16);
  const Tensor low = torch::zeros({kNumel}, torch::kShort);
  const auto step = [&] {
    ops::adamw_step(
        {}, {gradient, first, second, weight, low}, ops::AfterRead::kZero);
  };
  fmt::print("\noptimizer, {} M parameters\n", kNumel / 1'000'000);
  // Reads 16 bytes and writes 16 per element, clearing the gradient as the
  // trainer does.
  print(machine, {"adamw", 32.0 * kNumel, 0, step, [&] {
                    first.mul_(0.9).add_(gradient, 0.1);
                    second.mul_(0.999).addcmul_(gradient, gradient, 0.001);
                    master.mul_(0.999).addcdiv_(
                        first, second.sqrt().add_(1e-8), -1e-3);
                    weight.copy_(master);
                  }});
  print(
      machine,
      {"sum_of_squares",
       4.0 * kNumel,
       0,
       [&] { ops::sum_of_squares(gradient); },
       [&] { gradient.norm().item<float>(); }});
  compare_narrow_states(machine, 0.01 * torch::randn({kNumel}));
  const double step_ms = median_ms(kRuns, [&] {
    ops::sum_of_squares(gradient);
    step();
  });
  const double rate = 36.0 * kNumel / step_ms;
  fmt::print(
      "norm and step: {:.1f} GB/s, of a copy={:.2f}\n",
      rate / 1e6,
      rate / machine.bytes_per_ms);
}

// A whole step, of a bf16 weight, with moments of each dtype. In turns, because
// other work on the machine comes and goes.
void compare_moments() {
  constexpr int64_t kNumel = 24'000'000;
  const Tensor gradient = 0.01 * torch::randn({kNumel});
  const OptimizerGroup group{
      .name = "all",
      .weight = torch::ones({kNumel}, torch::kBFloat16),
      .main_grad = gradient,
      .parts = {{.numel = kNumel}}};
  const std::pair<const char*, MomentDtype> dtypes[] = {
      {"float32", MomentDtype::kFloat32},
      {"bfloat16", MomentDtype::kBfloat16},
      {"int8", MomentDtype::kInt8}};
  std::vector<AdamW> optimizers;
  for (const auto& [name, dtype] : dtypes) {
    optimizers.push_back(AdamW({group}, {}));
    optimizers.back().keep_moments_in(dtype);
  }
  fmt::print("\nAdamW's step of {} M parameters\n", kNumel / 1'000'000);
  for (int round = 0; round < 3; ++round) {
    double float_ms = 0;
    for (size_t i = 0; i < optimizers.size(); ++i) {
      const double ms = median_ms(
          kRuns, [&] { optimizers[i].step(1e-4, 1.0, ops::AfterRead::kKeep); });
      if (i == 0)
        float_ms = ms;
      fmt::print(
          "moments in {:<8} {:>8.2f} ms, {:.2f} of float32's\n",
          dtypes[i].first,
          ms,
          ms / float_ms);
    }
  }
}

// The matrices of the 135M shape. The floor counts symmetric products as half
// ones; PyTorch's side has torch.optim.Muon's whole products.
void compare_newton_schulz(torch::ScalarType dtype) {
  const Machine machine = measure(dtype);
  const NewtonSchulzOptions options{
      .dtype =
          dtype == torch::kFloat ? MuonDtype::kFloat32 : MuonDtype::kBfloat16};
  fmt::print("\nNewton-Schulz, {}\n", torch::toString(dtype));
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{576, 576}, {192, 576}, {576, 1536}}) {
    const Tensor matrix = torch::randn({rows, columns});
    print(
        machine,
        {fmt::format("newton_schulz {} x {}", rows, columns),
         0,
         ops::newton_schulz_flops(rows, columns, options),
         [&] { ops::newton_schulz(matrix, options); },
         [&] {
           const auto [a, b, c] = options.coefficients;
           Tensor x = (matrix / matrix.norm()).to(dtype);
           for (int step = 0; step < options.steps; ++step) {
             const Tensor gram = x.mm(x.t());
             x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a);
           }
         }});
  }
}

int run(int argc, char** argv) {
  if (argc > 1)
    at::set_num_threads(positive_number("THREADS", argv[1]));
  give_openblas_as_many_threads(argv);
  const std::string only = argc > 2 ? argv[2] : "";
  bool known = only.empty() || only == "optimizer";
  for (const ModelShape& shape : kShapes)
    known = known || only == shape.name;
  if (!known)
    throw ConfigError(fmt::format(
        "[bench] SHAPE = '{}': expected \"optimizer\" or a shape of "
        "bench/step_shapes.h",
        only));
  for (const ModelShape& shape : kShapes) {
    if (argc > 2 ? std::strcmp(argv[2], shape.name) != 0
                 : shape.sequence > 1024)
      continue;
    compare(shape, torch::kBFloat16);
    compare(shape, torch::kFloat);
  }
  compare_optimizer();
  compare_moments();
  compare_newton_schulz(torch::kBFloat16);
  compare_newton_schulz(torch::kFloat);
  return 0;
}

}  // namespace
}  // namespace brigade::bench

int main(int argc, char** argv) {
  brigade::ops::set_up_tensor_memory();
  return brigade::bench::exit_code_of(
      [&] { return brigade::bench::run(argc, argv); });
}

// bf16 weights, four micro-batches per step: gradients accumulate in fp32, are
// reduced once, during the last backward, and Brigade's AdamW reads them where
// they lie.
//
//   brigade run -n 2 -- build/release/examples/example_02_accumulation_bf16
#include <torch/nn.h>

#include <cstdio>

#include "brigade/brigade.h"

int main() {
  constexpr int kMicroBatches = 4;
  auto world = brigade::init_from_environment();
  torch::manual_seed(1);
  torch::nn::Sequential net(
      torch::nn::Linear(32, 128), torch::nn::Tanh(), torch::nn::Linear(128, 1));
  net->to(torch::kBFloat16);

  brigade::GradSyncOptions options;
  options.handover = brigade::GradHandover::kMainGrad;
  brigade::DataParallel model(net, world.data_parallel(), options);
  auto optimizer = brigade::make_adamw(model.sync(), /*weight_decay=*/0.0);

  const auto weight = torch::randn({32, 1});
  torch::manual_seed(100 + static_cast<uint64_t>(world.rank()));
  double first = 0;
  double last = 0;
  for (int step = 0; step < 100; ++step) {
    double sum = 0;
    std::vector<torch::Tensor> micro_batches;
    for (int i = 0; i < kMicroBatches; ++i)
      micro_batches.push_back(torch::randn({32, 32}));
    for (size_t i = 0; i < micro_batches.size(); ++i) {
      const torch::Tensor& x = micro_batches[i];
      const auto guard = model.accumulate_until_last(i, micro_batches.size());
      const auto y = model->forward(x.to(torch::kBFloat16)).to(torch::kFloat);
      const auto loss = torch::mse_loss(y, x.matmul(weight)) / kMicroBatches;
      loss.backward();
      sum += loss.item<double>();
    }
    optimizer.step(
        1e-2, model.sync().grad_scale(), brigade::ops::AfterRead::kZero);
    last = sum;
    if (step == 0)
      first = last;
  }
  std::printf("rank %d: loss %.2f -> %.2f\n", world.rank(), first, last);
  return last < first / 4 ? 0 : 1;
}

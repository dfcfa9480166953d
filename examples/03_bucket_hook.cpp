// A custom bucket hook (communication hook), which is called with each full
// bucket. It limits each rank's contribution to a norm of 1 before the sum, and
// counts the bytes that it sends.
//
//   brigade run -n 2 -- build/release/examples/example_03_bucket_hook
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdio>

#include "brigade/brigade.h"

int main() {
  auto world = brigade::init_from_environment();
  torch::manual_seed(1);
  torch::nn::Sequential net(
      torch::nn::Linear(32, 256), torch::nn::GELU(), torch::nn::Linear(256, 1));

  int64_t bytes = 0;
  int64_t limited = 0;
  brigade::GradSyncOptions options;
  options.bucket_capacity_bytes = 16 * 1024;
  options.first_bucket_bytes = 4 * 1024;
  options.hook = [&](brigade::BucketView& bucket,
                     brigade::Communicator& communicator) {
    const double norm = bucket.main_grad.norm().item<double>();
    if (norm > 1) {
      bucket.main_grad.mul_(1 / norm);
      ++limited;
    }
    bytes += static_cast<int64_t>(bucket.main_grad.nbytes());
    return communicator.all_reduce(bucket.main_grad);
  };

  brigade::DataParallel model(net, world.data_parallel(), options);
  torch::optim::AdamW optimizer(net->parameters(), 1e-2);
  const auto weight = torch::randn({32, 1});
  torch::manual_seed(100 + static_cast<uint64_t>(world.rank()));
  double first = 0;
  double last = 0;
  for (int step = 0; step < 100; ++step) {
    const auto x = torch::randn({64, 32});
    const auto loss = torch::mse_loss(model->forward(x), x.matmul(weight));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    if (step == 0)
      first = last;
  }
  std::printf(
      "rank %d: loss %.2f -> %.2f, %lld KiB given to the hook, %lld buckets "
      "limited\n",
      world.rank(),
      first,
      last,
      static_cast<long long>(bytes / 1024),
      static_cast<long long>(limited));
  return last < first / 4 ? 0 : 1;
}

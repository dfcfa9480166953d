// A user's program: any module, wrapped by the installed library.
#include <brigade/brigade.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdio>

int main() {
  auto world = brigade::init_from_environment();
  torch::manual_seed(7);
  torch::nn::Sequential net(
      torch::nn::Linear(4, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  brigade::DataParallel model(
      net, world.data_parallel(), {.bucket_capacity_bytes = 8 * brigade::MiB});
  torch::optim::SGD optimizer(net->parameters(), 0.1);

  const auto x = torch::randn({64, 4});
  const auto y = x.sum(1, /*keepdim=*/true);
  double first = 0;
  double last = 0;
  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(model->forward(x), y);
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    if (step == 0)
      first = last;
  }
  std::printf("loss %.4f -> %.4f\n", first, last);
  return last < first / 2 ? 0 : 1;
}

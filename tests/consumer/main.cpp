// A user's program: any module, its gradients summed by the installed library.
#include <brigade/comm/self_communicator.h>
#include <brigade/data_parallel/bucketed_grad_sync.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdio>

int main() {
  torch::manual_seed(7);
  torch::nn::Sequential net(
      torch::nn::Linear(4, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  std::vector<brigade::NamedParam> params;
  for (const auto& item : net->named_parameters())
    params.push_back({item.key(), item.value()});
  brigade::BucketedGradSync sync(params, brigade::make_self_communicator());
  torch::optim::AdamW optimizer(net->parameters(), 0.02);

  const auto x = torch::randn({64, 4});
  const auto y = x.sum(1, /*keepdim=*/true);
  double first = 0;
  double last = 0;
  for (int step = 0; step < 100; ++step) {
    auto loss = torch::mse_loss(net->forward(x), y);
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    if (step == 0)
      first = last;
  }
  std::printf("loss %.4f -> %.4f\n", first, last);
  return last < first / 2 ? 0 : 1;
}

// A recommender: embeddings of users and items whose gradients are sparse.
// Ranks exchange only the rows of each table that the step uses, and the
// optimizer steps only these.
//
//   brigade run -n 2 -- build/release/examples/example_07_recommender
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdio>

#include "brigade/brigade.h"

constexpr int64_t kUsers = 2000;
constexpr int64_t kItems = 500;
constexpr int64_t kFactors = 4;

torch::nn::Embedding make_table(int64_t rows) {
  torch::nn::Embedding table(
      torch::nn::EmbeddingOptions(rows, kFactors).sparse(true));
  const torch::NoGradGuard no_grad;
  table->weight.mul_(0.1);
  return table;
}

struct RecommenderImpl : torch::nn::Module {
  RecommenderImpl()
      : users(register_module("users", make_table(kUsers))),
        items(register_module("items", make_table(kItems))),
        mean(register_parameter("mean", torch::zeros({1}))) {}
  // user, item: [B] -> the rating, [B]
  torch::Tensor forward(const torch::Tensor& user, const torch::Tensor& item) {
    return (users(user) * items(item)).sum(1) + mean;
  }
  torch::nn::Embedding users, items;
  torch::Tensor mean;
};
TORCH_MODULE(Recommender);

int main() {
  auto world = brigade::init_from_environment();
  torch::manual_seed(1);  // the same model and the same data on every rank
  const auto taste = torch::randn({kUsers, 2});
  const auto kind = torch::randn({kItems, 2});

  brigade::DataParallel model(Recommender(), world.data_parallel());
  torch::optim::Adagrad optimizer(
      model->parameters(), torch::optim::AdagradOptions(0.2));
  torch::Tensor sums;  // of the loss, of ranks
  double first = 0;
  double last = 0;
  for (int step = 0; step < 150; ++step) {
    // A batch of 600, the same for any number of ranks that divides it.
    const auto all_users = torch::randint(kUsers, {600}, torch::kLong);
    const auto all_items = torch::randint(kItems, {600}, torch::kLong);
    const auto user = all_users.chunk(world.size())[world.rank()];
    const auto item = all_items.chunk(world.size())[world.rank()];
    const auto rating =
        3 + (taste.index_select(0, user) * kind.index_select(0, item)).sum(1);
    const auto loss = torch::mse_loss(model->forward(user, item), rating);
    loss.backward();
    optimizer.step();
    sums = torch::stack({loss.detach(), torch::ones({})});
    world.data_parallel()->all_reduce(sums)->wait();
    last = (sums[0] / sums[1]).item<double>();
    if (step == 0)
      first = last;
  }
  std::printf(
      "rank %d of %d: loss %.6f, in the first step %.2f\n",
      world.rank(),
      world.size(),
      last,
      first);
  return last < first / 2 ? 0 : 1;
}

// Embeddings with sparse gradients, against one process with dense ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/sgd.h>

#include "brigade/base/error.h"
#include "brigade/wrap/data_parallel.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using testing::make_world_of_one;
using testing::run_ranks;

constexpr int64_t kTableRows = 40;

struct TableNetImpl : torch::nn::Module {
  explicit TableNetImpl(bool is_sparse) {
    table = register_module(
        "table",
        torch::nn::Embedding(
            torch::nn::EmbeddingOptions(kTableRows, 4).sparse(is_sparse)));
    bag = register_module(
        "bag",
        torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(kTableRows, 4)
                                    .sparse(is_sparse)
                                    .mode(torch::kSum)));
    head = register_module("head", torch::nn::Linear(4, 1));
    fill_params(*this);
  }
  torch::Tensor forward(const torch::Tensor& rows) {  // [B, 3]
    return head(table(rows).sum(1) + bag(rows));
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::EmbeddingBag bag{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(TableNet);

// [B, 3], where B is the rank's own and rows repeat within and across ranks.
torch::Tensor table_rows(int rank, int step, int micro_batch) {
  const int64_t batch = 2 + rank;
  return (torch::arange(batch * 3) * (step + 3) + rank + 7 * micro_batch)
      .remainder(kTableRows / 2)
      .view({batch, 3});
}

torch::Tensor table_loss(TableNet& net, const torch::Tensor& rows) {
  return net->forward(rows).pow(2).sum() / 10;
}

template <typename MakeOptimizer>
void expect_training_of_one_process(int ranks, const MakeOptimizer& make) {
  TableNet alone(false);
  auto of_alone = make(alone->parameters());
  for (int step = 0; step < 4; ++step) {
    alone->zero_grad();
    for (int rank = 0; rank < ranks; ++rank) {
      for (int m = 0; m < 2; ++m)
        (table_loss(alone, table_rows(rank, step, m)) / ranks).backward();
    }
    of_alone.step();
  }
  run_ranks(ranks, [&](CommunicatorPtr world) {
    DataParallel model(TableNet(true), world);
    auto optimizer = make(model->parameters());
    for (int step = 0; step < 4; ++step) {
      for (int m = 0; m < 2; ++m) {
        const auto guard =
            model.accumulate_until_last(static_cast<size_t>(m), 2);
        table_loss(*model, table_rows(world->rank(), step, m)).backward();
      }
      EXPECT_TRUE(model->table->weight.grad().is_sparse());
      EXPECT_TRUE(model->bag->weight.grad().is_sparse());
      optimizer.step();
    }
    const auto expected = alone->parameters();
    const auto params = model->parameters();
    for (size_t i = 0; i < params.size(); ++i) {
      EXPECT_TRUE(torch::allclose(params[i], expected[i], 1e-5, 1e-6)) << i;
      auto of_rank_0 = params[i].detach().clone();
      world->broadcast(of_rank_0, 0)->wait();
      EXPECT_TRUE(torch::equal(params[i], of_rank_0)) << i;
    }
  });
}

TEST(SparseGradients, TrainAsOneProcessWithDenseOnes) {
  for (const int ranks : {1, 2, 3}) {
    expect_training_of_one_process(ranks, [](auto params) {
      return torch::optim::SGD(params, torch::optim::SGDOptions(0.1));
    });
    expect_training_of_one_process(ranks, [](auto params) {
      return torch::optim::Adagrad(params, torch::optim::AdagradOptions(0.1));
    });
  }
}

TEST(SparseGradients, SendTheRowsOfTheStepAlone) {
  run_ranks(2, [](CommunicatorPtr world) {
    torch::nn::Embedding table(
        torch::nn::EmbeddingOptions(100000, 8).sparse(true));
    DataParallel model(table, world);
    world->clear_records();
    model->forward(torch::tensor({1, 5, 5, 99999})).sum().backward();
    int64_t bytes = 0;
    for (const auto& record : world->records())
      bytes += record.bytes;
    EXPECT_LT(bytes, 2000);
    const auto grad = table->weight.grad();
    EXPECT_EQ(grad._nnz(), 3);
    EXPECT_EQ(grad.to_dense()[5][0].item<double>(), 2.0);
  });
}

// A rank that did not use the table adds zeros; unused tables have no gradient.
TEST(SparseGradients, AreZeroOnRanksThatDoNotUseThem) {
  run_ranks(2, [](CommunicatorPtr world) {
    GradSyncOptions options;
    options.missing_gradient = MissingGradient::kZero;
    DataParallel model(TableNet(true), world, options);
    const auto rows = torch::tensor({{1, 2, 2}});
    const auto use_table = [&] {
      return model->head(model->table(rows).sum(1)).sum();
    };
    const auto use_none = [&] {
      return model->head(torch::ones({1, 4})).sum();
    };
    for (int step = 0; step < 2; ++step) {
      model.reset();
      (world->rank() == 0 ? use_table() : use_none()).backward();
      const auto grad = model->table->weight.grad();
      ASSERT_TRUE(grad.defined());
      EXPECT_TRUE(torch::allclose(
          grad.to_dense()[2], model->head->weight[0], 1e-6, 1e-7));
      EXPECT_FALSE(model->bag->weight.grad().defined());
    }
  });
}

TEST(SparseGradients, ZeroGradBetweenMicroBatchesDropsThem) {
  for (const bool to_none : {false, true}) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(6, 2).sparse(true));
    DataParallel model(table, make_world_of_one());
    {
      const auto guard = model.no_sync();
      (model->forward(torch::tensor({1})) * 100).sum().backward();
      EXPECT_EQ(table->weight.grad().to_dense()[1][0].item<double>(), 100.0);
    }
    table->zero_grad(to_none);
    model->forward(torch::tensor({1})).sum().backward();
    EXPECT_EQ(table->weight.grad().to_dense()[1][0].item<double>(), 1.0);
  }
}

TEST(SparseGradients, CountOnlyRanksThatHaveNotJoined) {
  run_ranks(3, [](CommunicatorPtr world) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(6, 2).sparse(true));
    DataParallel model(table, world);
    model.allow_uneven_inputs();
    for (int step = 0; step <= world->rank(); ++step) {
      model.reset();
      model->forward(torch::tensor({step})).sum().backward();
      const auto grad = table->weight.grad().to_dense();
      EXPECT_EQ(grad[step][0].item<double>(), 1.0);
      EXPECT_EQ(grad.sum().item<double>(), 2.0);
    }
    model.join();
  });
}

TEST(SparseGradients, StepInBackwardWithDenseOnes) {
  run_ranks(2, [](CommunicatorPtr world) {
    const auto train = [&](bool in_backward) {
      DataParallel model(TableNet(true), world);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      if (in_backward)
        model.step_in_backward(optimizer);
      for (int step = 0; step < 3; ++step) {
        table_loss(*model, table_rows(world->rank(), step, 0)).backward();
        if (!in_backward)
          optimizer.step();
      }
      return model->parameters();
    };
    const auto stepped = train(true);
    const auto expected = train(false);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(torch::equal(stepped[i], expected[i])) << i;
  });
}

TEST(SparseGradients, ComputeCopiesStepFloat32Tables) {
  run_ranks(2, [](CommunicatorPtr world) {
    const auto train = [&](bool is_sparse) {
      torch::nn::Embedding table(
          torch::nn::EmbeddingOptions(6, 2).sparse(is_sparse));
      {
        const torch::NoGradGuard no_grad;
        table->weight.copy_(pseudo_random({6, 2}, 1));
      }
      WrapOptions wrap;
      wrap.mixed_precision = MixedPrecision{};
      DataParallel model(table, world, {}, wrap);
      torch::optim::SGD optimizer(table->parameters(), 0.1);
      for (int step = 0; step < 3; ++step) {
        const auto y =
            model.forward(torch::tensor({world->rank(), step, step}));
        EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
        y.to(torch::kFloat).pow(2).sum().backward();
        EXPECT_EQ(table->weight.grad().is_sparse(), is_sparse);
        EXPECT_EQ(table->weight.grad().scalar_type(), torch::kFloat);
        optimizer.step();
      }
      return table->weight.detach().clone();
    };
    EXPECT_TRUE(torch::allclose(train(true), train(false), 1e-3, 1e-3));
  });
}

TEST(SparseGradients, AreRefusedByNameWhereTheyHaveNoPlace) {
  const auto error_of = [](const GradSyncOptions& options,
                           const WrapOptions& wrap) -> std::string {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
    return message_of<UsageError>(
        [&] { DataParallel model(table, make_world_of_one(), options, wrap); });
  };
  EXPECT_THAT(
      error_of({.handover = GradHandover::kMainGrad}, {}),
      HasSubstr("parameter 'weight' has sparse gradients"));
  EXPECT_THAT(
      error_of({}, {.sync = GradSyncAlgorithm::kPerParam}),
      HasSubstr("sparse gradients need buckets"));
}

// A frozen table has no gradient, whatever its options say.
TEST(SparseGradients, AFrozenTableIsAsAnyFrozenParameter) {
  for (const GradSyncAlgorithm sync :
       {GradSyncAlgorithm::kBucketed, GradSyncAlgorithm::kPerParam}) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
    table->weight.set_requires_grad(false);
    torch::nn::Sequential net(table, torch::nn::Linear(2, 1));
    const torch::Tensor ids = torch::tensor({0, 3});
    DataParallel model(
        net,
        make_world_of_one(),
        {.handover = GradHandover::kMainGrad},
        {.sync = sync});
    for (int step = 0; step < 2; ++step) {
      net->forward(ids).sum().backward();
      EXPECT_FALSE(table->weight.grad().defined());
      EXPECT_EQ(net->parameters().back().grad().item<double>(), 2 * (step + 1));
    }
  }
}

}  // namespace
}  // namespace brigade

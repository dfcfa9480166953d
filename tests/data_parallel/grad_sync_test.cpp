#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cmath>

#include "brigade/base/error.h"
#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/wrap/data_parallel.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using ::testing::ThrowsMessage;

std::vector<Param> named(const torch::nn::Module& module) {
  std::vector<Param> params;
  for (const auto& item : module.named_parameters())
    params.push_back({item.key(), item.value()});
  return params;
}

using Kind = GradSyncAlgorithm;

// Three linears; a loss whose gradients depend on the input.
struct Net : torch::nn::Module {
  Net() {
    a = register_module("a", torch::nn::Linear(5, 7));
    b = register_module("b", torch::nn::Linear(7, 3));
    c = register_module("c", torch::nn::Linear(3, 1));
    fill_params(*this, 0);
  }
  torch::Tensor loss(const torch::Tensor& x) {
    return c(torch::tanh(b(torch::tanh(a(x))))).sum();
  }
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
};

torch::Tensor input_of(int rank, int micro_batch) {
  return pseudo_random({4, 5}, 100 + 10 * rank + micro_batch);
}

// One process's mean over ranks of the sums over micro-batches.
std::vector<torch::Tensor> expected_grads(int ranks, int micro_batches) {
  Net net;
  for (int rank = 0; rank < ranks; ++rank)
    for (int m = 0; m < micro_batches; ++m)
      (net.loss(input_of(rank, m)) / ranks).backward();
  std::vector<torch::Tensor> grads;
  for (const auto& param : net.parameters())
    grads.push_back(param.grad());
  return grads;
}

// An embedding with many rows, few of them used per step, and one linear.
struct TableNet : torch::nn::Module {
  TableNet() {
    table = register_module("table", torch::nn::Embedding(97, 5));
    head = register_module("head", torch::nn::Linear(5, 1));
    fill_params(*this, 50);
  }
  torch::Tensor loss(int rank, int micro_batch) {
    const auto ids = torch::tensor({3, 3 + rank, 10 * rank + micro_batch});
    return head(torch::tanh(table(ids))).sum();
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear head{nullptr};
};

TEST(GradSync, SumsSparseRowsAsEveryParameterAloneAndSendsLess) {
  constexpr int kRanks = 3;
  run_ranks(kRanks, [](const CommunicatorPtr& world) {
    std::vector<std::vector<torch::Tensor>> gradients;
    for (const Kind kind : {Kind::kPerParam, Kind::kBucketed}) {
      TableNet net;
      const auto params = parameters_of(net);
      EXPECT_TRUE(params[0].is_row_sparse);
      EXPECT_FALSE(params[1].is_row_sparse);
      const auto sync = make_grad_sync(kind, params, world, {});
      for (int m = 0; m < 2; ++m) {
        sync->set_accumulate_only(m == 0);
        net.loss(world->rank(), m).backward();
      }
      sync->finish();
      gradients.emplace_back();
      for (const auto& param : net.parameters())
        gradients.back().push_back(param.grad().clone());
      if (kind == Kind::kPerParam)
        continue;
      const auto& buckets = sync->report().buckets;
      ASSERT_EQ(buckets.size(), 2U);
      // At most four rows per rank: 3, 3 + rank, 10 rank and 10 rank + 1.
      EXPECT_EQ(buckets[1].bytes, kRanks * 4 * 5 * 4 / 2);
    }
    for (size_t i = 0; i < gradients[0].size(); ++i)
      EXPECT_TRUE(
          torch::allclose(gradients[0][i], gradients[1][i], 1e-6, 1e-7));
  });
}

TEST(GradSync, RowsOfWhatIsNoMatrixAreRefused) {
  EXPECT_THAT(
      [&] {
        BucketedGradSync sync(
            {{"bias", torch::ones({4}, torch::requires_grad()), true}},
            testing::make_world_of_one());
      },
      ThrowsMessage<UsageError>(AllOf(
          HasSubstr("'bias' is declared row-sparse"), HasSubstr("1 dims"))));
}

class GradSyncTest : public ::testing::TestWithParam<
                         std::tuple<Kind, int, BucketOrder, GradHandover>> {};

TEST_P(GradSyncTest, GivesTheMeanOverRanksOfTheSumOverMicroBatches) {
  const auto [kind, ranks, order, handover] = GetParam();
  const auto expected = expected_grads(ranks, 3);
  run_ranks(
      ranks,
      [&, kind = kind, order = order, handover = handover](
          CommunicatorPtr world) {
        Net net;
        GradSyncOptions options;
        options.bucket_capacity_bytes = 128;
        options.first_bucket_bytes = 64;
        options.order = order;
        options.handover = handover;
        const auto sync = make_grad_sync(kind, named(net), world, options);
        for (int step = 0; step < 3; ++step) {
          for (int m = 0; m < 3; ++m) {
            sync->set_accumulate_only(m < 2);
            net.loss(input_of(world->rank(), m)).backward();
          }
          sync->finish();
          for (size_t i = 0; i < expected.size(); ++i) {
            const int index = static_cast<int>(i);
            const auto grad = sync->main_grad(index) * sync->grad_scale();
            EXPECT_TRUE(torch::allclose(grad, expected[i], 1e-5, 1e-6))
                << sync->params()[i].name << " in step " << step;
            if (handover == GradHandover::kParamDtype &&
                kind == Kind::kBucketed) {
              EXPECT_EQ(
                  sync->params()[i].tensor.grad().data_ptr(),
                  sync->main_grad(index).data_ptr());
            }
          }
          if (handover == GradHandover::kMainGrad) {
            sync->zero_main_grads();
          } else {
            torch::optim::SGD(net.parameters(), 0.0).step();
            net.zero_grad();
          }
        }
      });
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    GradSyncTest,
    ::testing::Combine(
        ::testing::Values(Kind::kBucketed, Kind::kPerParam),
        ::testing::Values(1, 2, 3),
        ::testing::Values(
            BucketOrder::kRegistration,
            BucketOrder::kReverse,
            BucketOrder::kObserved),
        ::testing::Values(GradHandover::kParamDtype, GradHandover::kMainGrad)));

// 256 + 1 is 256 in bf16, and exactly 257 in fp32.
TEST(GradSync, AccumulatesBfloat16GradientsInFp32) {
  for (const auto handover :
       {GradHandover::kParamDtype, GradHandover::kMainGrad}) {
    auto weight = torch::zeros({2}, torch::kBFloat16).requires_grad_();
    GradSyncOptions options;
    options.handover = handover;
    BucketedGradSync sync(
        {{"weight", weight}}, testing::make_world_of_one(), options);
    sync.set_accumulate_only(true);
    (weight * 256).sum().backward();
    sync.set_accumulate_only(false);
    weight.sum().backward();
    sync.finish();
    EXPECT_EQ(sync.main_grad(0)[0].item<float>(), 257.0F);
  }
}

TEST(GradSync, LaunchesInPlanOrderWhateverOrderBucketsFillIn) {
  run_ranks(2, [](CommunicatorPtr world) {
    // Registered a, b; reverse order expects b first. Rank 0 uses b last in
    // backward, rank 1 first.
    auto a = torch::ones({64}).requires_grad_();
    auto b = torch::ones({64}).requires_grad_();
    const auto log = std::make_shared<std::vector<BucketView>>();
    GradSyncOptions options;
    options.bucket_capacity_bytes = 256;
    options.first_bucket_bytes = 256;
    options.hook = recording_hook(log);
    BucketedGradSync sync({{"a", a}, {"b", b}}, world, options);
    const auto loss =
        world->rank() == 0 ? (b.sin() * a).sum() : (a.sin() * b).sum();
    loss.backward();
    sync.finish();
    ASSERT_EQ(log->size(), 2U);
    EXPECT_EQ((*log)[0].names, std::vector<std::string>{"b"});
    EXPECT_EQ((*log)[1].names, std::vector<std::string>{"a"});
    EXPECT_EQ((*log)[0].main_grad.nbytes(), 256U);
  });
}

TEST(GradSync, LaunchesNothingWhileItAccumulates) {
  run_ranks(2, [](CommunicatorPtr world) {
    Net net;
    BucketedGradSync sync(named(net), world);
    const auto before = world->launches();
    sync.set_accumulate_only(true);
    net.loss(input_of(0, 0)).backward();
    EXPECT_EQ(world->launches(), before);
    sync.set_accumulate_only(false);
    net.loss(input_of(0, 1)).backward();
    EXPECT_EQ(world->launches(), before + 1);
  });
}

// The first bucket is launched before the last parameter's gradient exists.
TEST(GradSync, LaunchesDuringBackward) {
  run_ranks(2, [](CommunicatorPtr world) {
    Net net;
    GradSyncOptions options;
    options.bucket_capacity_bytes = 64;
    options.first_bucket_bytes = 64;
    BucketedGradSync sync(named(net), world, options);
    net.loss(input_of(0, 0)).backward();
    const auto& buckets = sync.report().buckets;
    ASSERT_GT(buckets.size(), 2U);
    EXPECT_LT(buckets.front().launched_ns, buckets.back().ready_ns);
  });
}

TEST(GradSync, TheReportTellsWhenEachParameterWasReady) {
  Net net;
  GradSyncOptions options;
  options.bucket_capacity_bytes = 64;
  options.first_bucket_bytes = 64;
  BucketedGradSync sync(named(net), testing::make_world_of_one(), options);
  net.loss(input_of(0, 0)).backward();
  const SyncReport& report = sync.report();
  ASSERT_EQ(report.ready_ns.size(), sync.params().size());
  for (const int64_t ready_ns : report.ready_ns) {
    EXPECT_GE(ready_ns, report.backward_begin_ns);
    EXPECT_LE(ready_ns, report.backward_end_ns);
  }
  // A bucket is ready right after its latest parameter.
  for (size_t b = 0; b < report.buckets.size(); ++b) {
    int64_t latest_ns = 0;
    for (const RunPart& slot : sync.plan().buckets[b].slots)
      latest_ns =
          std::max(latest_ns, report.ready_ns[static_cast<size_t>(slot.param)]);
    EXPECT_GE(report.buckets[b].ready_ns, latest_ns);
    for (const int64_t ready_ns : report.ready_ns)
      EXPECT_FALSE(
          latest_ns < ready_ns && ready_ns < report.buckets[b].ready_ns);
  }
}

TEST(GradSync, NamesParametersWithoutGradient) {
  Net net;
  BucketedGradSync sync(named(net), testing::make_world_of_one());
  EXPECT_THAT(
      [&] {
        net.a(input_of(0, 0)).sum().backward();
        EXPECT_FALSE(net.a->weight.grad().defined());  // nothing to step with
        sync.finish();
      },
      ThrowsMessage<UsageError>(AllOf(
          HasSubstr("4 of 6 parameters got no gradient in this step: b.weight"),
          HasSubstr("missing_gradient = kZero"))));
}

TEST(GradSync, RanksMayDisagreeOnMissingGradientsWhenTheyCountAsZero) {
  for (const Kind kind : {Kind::kBucketed}) {
    run_ranks(3, [&](CommunicatorPtr world) {
      auto a = torch::ones({3}).requires_grad_();
      auto b = torch::ones({3}).requires_grad_();
      GradSyncOptions options;
      options.missing_gradient = MissingGradient::kZero;
      options.bucket_capacity_bytes = 1;
      options.first_bucket_bytes = 1;
      const auto sync =
          make_grad_sync(kind, {{"a", a}, {"b", b}}, world, options);
      for (int step = 0; step < 2; ++step) {
        const auto loss = world->rank() == 0   ? a.sum()
                          : world->rank() == 1 ? b.sum() * 3
                                               : (a + b).sum();
        loss.backward();
        sync->finish();
        EXPECT_NEAR(a.grad()[0].item<float>(), 2.0 / 3, 1e-6);
        EXPECT_NEAR(b.grad()[0].item<float>(), 4.0 / 3, 1e-6);
        a.mutable_grad().reset();
        b.mutable_grad().reset();
      }
    });
  }
}

// The ranks with data replan after their first step, in which a rank without
// data from the start must take part.
TEST(GradSync, RanksWithoutDataAdoptTheObservedOrder) {
  for (const int absent : {0, 1}) {
    run_ranks(3, [&](CommunicatorPtr world) {
      // Backward reaches `last` first, not the last registered parameter.
      auto last = torch::full({3}, 2.0).requires_grad_();
      auto first = torch::full({3}, 0.5).requires_grad_();
      GradSyncOptions options;
      options.order = BucketOrder::kObserved;
      options.bucket_capacity_bytes = 1;
      options.first_bucket_bytes = 1;
      BucketedGradSync sync({{"last", last}, {"first", first}}, world, options);
      sync.allow_uneven_inputs({});
      const int steps =
          world->rank() == absent ? 0 : 2 + (world->rank() == 2 ? 1 : 0);
      for (int step = 0; step < steps; ++step) {
        (first.sin() * last).sum().backward();
        EXPECT_FLOAT_EQ(last.grad()[0].item<float>(), std::sin(0.5F));
        EXPECT_FLOAT_EQ(first.grad()[0].item<float>(), 2 * std::cos(0.5F));
        sync.reset();
      }
      sync.join();
      ASSERT_EQ(sync.plan().buckets.size(), 2U);
      EXPECT_EQ(sync.plan().buckets[0].slots[0].param, 0) << world->rank();
      EXPECT_EQ(sync.plan().buckets[1].slots[0].param, 1) << world->rank();
    });
  }
}

// q, k and v can then be one product wherever a bucket ends.
TEST(GradSync, BucketsOfADtypeLieSideBySide) {
  std::vector<Param> params;
  for (const char* name : {"q", "k", "v"})
    params.push_back({name, torch::ones({8, 16}).requires_grad_()});
  GradSyncOptions options;
  options.handover = GradHandover::kMainGrad;
  options.bucket_capacity_bytes = 1;
  const BucketedGradSync sync(params, testing::make_world_of_one(), options);
  ASSERT_EQ(sync.plan().buckets.size(), 3U);
  for (size_t i = 0; i + 1 < params.size(); ++i) {
    const torch::Tensor& later = params[i].tensor;  // in reverse
    const torch::Tensor& earlier = params[i + 1].tensor;
    for (const auto& [from, to] :
         {std::pair(earlier, later), std::pair(earlier.grad(), later.grad())}) {
      EXPECT_EQ(from.storage().data(), to.storage().data());
      EXPECT_EQ(from.storage_offset() + from.numel(), to.storage_offset());
    }
  }
}

TEST(GradSync, AParameterUsedTwiceInABackwardIsReadyOnce) {
  auto w = torch::full({1}, 3.0).requires_grad_();
  BucketedGradSync sync({{"w", w}}, testing::make_world_of_one());
  (w * w).sum().backward();
  EXPECT_EQ(w.grad().item<float>(), 6.0F);
}

class TwoBackwards
    : public ::testing::TestWithParam<std::tuple<FinishMode, GradHandover>> {};

TEST_P(TwoBackwards, AreRefusedUnderOneFinish) {
  Net net;
  GradSyncOptions options;
  std::tie(options.finish, options.handover) = GetParam();
  BucketedGradSync sync(named(net), testing::make_world_of_one(), options);
  net.loss(input_of(0, 0)).backward();
  EXPECT_THAT(
      [&] { net.loss(input_of(0, 0)).backward(); },
      ThrowsMessage<UsageError>(
          AllOf(HasSubstr("twice"), HasSubstr("no_sync()"))));
  sync.reset();
  sync.zero_main_grads();
  net.loss(input_of(0, 0)).backward();
  sync.finish();
}

// With kAtEndOfBackward they add up.
INSTANTIATE_TEST_SUITE_P(
    Modes,
    TwoBackwards,
    ::testing::Values(
        std::tuple(FinishMode::kExplicit, GradHandover::kParamDtype),
        std::tuple(FinishMode::kExplicit, GradHandover::kMainGrad)));

TEST(GradSync, FinishBeforeAnyBackwardIsRefused) {
  Net net;
  BucketedGradSync sync(named(net), testing::make_world_of_one());
  EXPECT_THAT(
      [&] { sync.finish(); },
      ThrowsMessage<UsageError>(AllOf(
          HasSubstr("finish() before any backward()"),
          HasSubstr("call it once a step, after"))));
  sync.set_accumulate_only(true);
  net.loss(input_of(0, 0)).backward();
  EXPECT_THAT(
      [&] { sync.finish(); },
      ThrowsMessage<UsageError>(HasSubstr("no_sync() alone")));
}

TEST(GradSync, WrappingTwiceIsRefusedUntilTheFirstIsGone) {
  Net net;
  const auto world = testing::make_world_of_one();
  {
    BucketedGradSync first(named(net), world);
    EXPECT_THAT(
        [&] { BucketedGradSync second(named(net), world); },
        ThrowsMessage<UsageError>(HasSubstr("'a.weight' is already")));
  }
  BucketedGradSync third(named(net), world);
}

TEST(GradSync, NothingToSynchroniseIsRefused) {
  for (const std::vector<Param>& params :
       {std::vector<Param>{},
        std::vector<Param>{{"frozen", torch::ones({2})}}}) {
    EXPECT_THAT(
        [&] { BucketedGradSync sync(params, testing::make_world_of_one()); },
        ThrowsMessage<UsageError>(AllOf(
            HasSubstr("no parameter that requires a grad"),
            HasSubstr("turn requires_grad on before"))));
  }
}

TEST(GradSync, AParameterOnAnotherDeviceIsNamed) {
  const auto here = torch::ones({2}).requires_grad_();
  const auto elsewhere =
      torch::empty({2}, torch::device(torch::kMeta)).requires_grad_();
  EXPECT_THAT(
      [&] {
        BucketedGradSync sync(
            {{"here", here}, {"elsewhere", elsewhere}},
            testing::make_world_of_one());
      },
      ThrowsMessage<UsageError>(AllOf(
          HasSubstr("parameter 'elsewhere' is on device meta"),
          HasSubstr("move the module before wrapping it"))));
}

TEST(GradSync, AChangeAfterWrappingIsNamed) {
  const auto world = testing::make_world_of_one();
  const auto message_after = [&](const std::function<void(Net&)>& change) {
    Net net;
    net.c->bias.set_requires_grad(false);
    BucketedGradSync sync(named(net), world);
    change(net);
    return message_of<UsageError>([&] {
      net.loss(input_of(0, 0).to(net.a->weight.scalar_type())).backward();
    });
  };
  EXPECT_THAT(
      message_after([](Net& net) { net.b->bias.set_requires_grad(false); }),
      HasSubstr("requires_grad of 'b.bias' was turned off"));
  EXPECT_THAT(
      message_after([](Net& net) { net.c->bias.set_requires_grad(true); }),
      HasSubstr("requires_grad of 'c.bias' was turned on"));
  EXPECT_THAT(
      message_after([](Net& net) { net.to(torch::kDouble); }),
      HasSubstr("'a.weight' was Float when it was wrapped and is Double"));
  EXPECT_EQ(message_after([](Net&) {}), "");
}

TEST(GradSync, ReplicasThatDifferAreNamedOnEveryRank) {
  run_ranks(2, [](CommunicatorPtr world) {
    const int64_t size = world->rank() == 0 ? 2 : 3;
    auto a = torch::ones({1}).requires_grad_();
    auto b = torch::ones({size}).requires_grad_();
    EXPECT_THAT(
        [&] {
          BucketedGradSync sync({{"a", a}, {"b", b}}, world);
        },
        ThrowsMessage<CommError>(AllOf(
            HasSubstr("rank 0 has 'b: [2] Float'"),
            HasSubstr("rank 1 has 'b: [3] Float'"))));
  });
}

TEST(GradSync, ReplicasStartWithRank0sWeights) {
  run_ranks(3, [](CommunicatorPtr world) {
    auto w = torch::full({5}, world->rank() + 1.0).requires_grad_();
    BucketedGradSync sync({{"w", w}}, world);
    EXPECT_EQ(w.sum().item<float>(), 5.0F);
  });
}

TEST(GradSync, TheBf16HookHalvesTheBytesAndSumsInFp32) {
  run_ranks(4, [](CommunicatorPtr world) {
    auto w = torch::zeros({64}).requires_grad_();
    GradSyncOptions options;
    options.hook = bf16_hook();
    options.reduction = Reduction::kSum;
    BucketedGradSync sync({{"w", w}}, world, options);
    world->clear_records();
    (w * (world->rank() == 0 ? 256.0 : 1.0)).sum().backward();
    EXPECT_EQ(w.grad()[0].item<float>(), 260.0F);  // 259, rounded once
    int64_t bytes = 0;
    for (const auto& record : world->records())
      bytes += record.bytes;
    EXPECT_EQ(bytes, 64 * 2);
  });
}

TEST(GradSync, AnExceptionInAHookReachesTheCallerOfBackwardWithTheBucket) {
  auto w = torch::zeros({64}).requires_grad_();
  GradSyncOptions options;
  options.hook = [](BucketView&, Communicator&) -> WorkPtr {
    throw std::runtime_error("no such compressor");
  };
  BucketedGradSync sync({{"w", w}}, testing::make_world_of_one(), options);
  EXPECT_THAT(
      [&] { w.sum().backward(); },
      ThrowsMessage<Error>(AllOf(
          HasSubstr("bucket 0 of 1 (w, 256 bytes)"),
          HasSubstr("no such compressor"))));
}

TEST(GradSync, APeerThatStallsMidBucketIsACommErrorNamingBucketAndRank) {
  run_ranks(
      2,
      [](CommunicatorPtr world) {
        Net net;
        BucketedGradSync sync(named(net), world);
        if (world->rank() == 1)
          return;
        EXPECT_THAT(
            [&] { net.loss(input_of(0, 0)).backward(); },
            ThrowsMessage<CommError>(AllOf(
                HasSubstr("bucket 0 of 1 (c.bias ... "),
                HasSubstr("group 'world'"),
                HasSubstr("rank 1 of this group"))));
      },
      {.check_collectives = false,
       .timeout = testing::timeout_of_lost_ranks()});
}

TEST(GradSync, FinishedRanksShadowTheOthersUntilAllHaveJoined) {
  run_ranks(3, [&](CommunicatorPtr world) {
    auto w = torch::zeros({4}).requires_grad_();
    auto v = torch::zeros({4}).requires_grad_();
    BucketedGradSync sync({{"w", w}, {"v", v}}, world);
    sync.allow_uneven_inputs({});
    const int steps = 1 + 2 * world->rank();  // 1, 3, 5
    for (int step = 0; step < steps; ++step) {
      ((w + v) * (world->rank() + 1)).sum().backward();
      // Ranks 0, 1, 2 give 1, 2, 3; the mean is over those with data.
      const float expected = step < 1 ? 2.0F : step < 3 ? 2.5F : 3.0F;
      EXPECT_EQ(w.grad()[0].item<float>(), expected) << step;
      w.mutable_grad().reset();
      v.mutable_grad().reset();
    }
    sync.join();
  });
}

// The optimizer divides: grad_scale() is that of the same step's mean.
TEST(GradSync, TheScaleOfMainGradsFollowsTheRanksWithData) {
  run_ranks(3, [&](CommunicatorPtr world) {
    auto w = torch::zeros({4}).requires_grad_();
    GradSyncOptions options;
    options.handover = GradHandover::kMainGrad;
    BucketedGradSync sync({{"w", w}}, world, options);
    sync.allow_uneven_inputs({});
    const int steps = world->rank();  // 0, 1, 2: rank 0 has no data at all
    for (int step = 0; step < steps; ++step) {
      (w * (world->rank() + 1)).sum().backward();
      EXPECT_EQ(sync.grad_scale(), step < 1 ? 0.5 : 1.0);
      const double mean =
          sync.main_grad(0)[0].item<double>() * sync.grad_scale();
      EXPECT_EQ(mean, step < 1 ? 2.5 : 3.0);
      sync.zero_main_grads();
    }
    sync.join();
  });
}

TEST(GradSyncOptions, BlocksHaveAtLeastOneElement) {
  run_ranks(1, [](const CommunicatorPtr& world) {
    const torch::nn::Linear linear(2, 2);
    GradSyncOptions options;
    options.block_numel = 0;
    EXPECT_THAT(
        [&] {
          make_grad_sync(Kind::kBucketed, named(*linear), world, options);
        },
        ThrowsMessage<UsageError>(HasSubstr("block_numel = 0")));
  });
}

}  // namespace
}  // namespace brigade

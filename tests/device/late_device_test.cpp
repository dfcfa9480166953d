// The late device, and what the library does on it.
#include "late_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "brigade/comm/device_stream.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/metrics/clock.h"
#include "brigade/run/run_options.h"
#include "brigade/train/train_step.h"
#include "staged_communicator.h"
#include "tests/support/compare.h"
#include "tests/support/program.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::Forgotten;
using testing::Lag;
using testing::late_device;

const std::vector<Lag> kLags = {Lag::kCompute, Lag::kTransfers};

std::string name_of(Lag lag) {
  return lag == Lag::kCompute ? "ComputeLags" : "TransfersLag";
}

// ---- the device itself

TEST(LateDevice, ComputesWhatTheCpuComputes) {
  torch::manual_seed(1);
  const auto a = torch::randn({3, 4});
  const auto b = torch::randn({4, 5});
  for (const Lag lag : kLags) {
    testing::set_lag(lag);
    const auto c = at::softmax(
        torch::matmul(a.to(late_device(0)), b.to(late_device(0))) * 2.0, -1);
    EXPECT_TRUE(
        torch::equal(to_host(c), at::softmax(torch::matmul(a, b) * 2.0, -1)));
  }
}

TEST(LateDeviceDeathTest, ItsMemoryMayNotBeTouched) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto read_directly = [] {
    const auto x = torch::zeros({2}, late_device(0));
    return x.data_ptr<float>()[0] == 0;
  };
  EXPECT_EXIT(
      read_directly(), ::testing::KilledBySignal(SIGSEGV), ::testing::_);
}

TEST(StreamMark, OrdersWhatOneStreamReadsBehindWhatAnotherWrites) {
  testing::set_lag(Lag::kHeldTransfers);
  const auto device = late_device(0);
  const auto x = torch::zeros({4}, device);
  to_host(x);
  const SideStream side(device);
  const auto write = [&] {
    const StreamScope scope(side);
    x.fill_(1);
    return StreamMark::of_current_stream(device);
  };
  const StreamMark first = write();
  EXPECT_FALSE(first.is_reached());
  EXPECT_EQ(to_host(x).sum().item<float>(), 0) << "nothing was waited for";
  first.wait_on_host();
  EXPECT_TRUE(first.is_reached());
  EXPECT_EQ(to_host(x).sum().item<float>(), 4);

  x.zero_();
  to_host(x);
  write().wait();
  EXPECT_EQ(to_host(x).sum().item<float>(), 4);
}

TEST(StreamMark, KnowsWhenTheDeviceReachedIt) {
  testing::set_lag(Lag::kHeldTransfers);
  const auto device = late_device(0);
  const SideStream side(device);
  const StreamScope scope(side);
  const int64_t start = steady_now_ns();
  const auto before = StreamMark::timed(device);
  testing::queue_late({torch::zeros({1}, device)}, [](const auto&) {});
  const auto after = StreamMark::timed(device);
  EXPECT_EQ(after.reached_ns(), 0) << "nobody waits for it yet";
  after.wait_on_host();
  // Two milliseconds each for the zeros, the work and the mark itself.
  const int64_t between = after.reached_ns() - before.reached_ns();
  EXPECT_GE(between, 5'000'000);
  EXPECT_GE(before.reached_ns(), start);
  EXPECT_LE(after.reached_ns(), steady_now_ns());
}

TEST(StreamTrail, ReachesAllStreamsThatWroteIntoABuffer) {
  testing::set_lag(Lag::kTransfers);
  const auto device = late_device(0);
  const auto x = torch::zeros({2}, device);
  to_host(x);
  StreamTrail trail;
  const SideStream one(device);
  const SideStream other(device);
  {
    const StreamScope scope(one);
    x[0].fill_(1);
    trail.add_current_stream(device);
  }
  {
    const StreamScope scope(other);
    x[1].fill_(2);
    trail.add_current_stream(device);
  }
  trail.wait();
  EXPECT_EQ(to_host(x).sum().item<float>(), 3);
}

// ---- the library

// Three linears, not a module: libtorch only moves modules between its own
// devices.
struct Net {
  explicit Net(torch::Device device) {
    for (int i = 0; i < 6; ++i) {
      const bool is_bias = i % 2 == 1;
      auto value =
          torch::sin(torch::arange(is_bias ? 6 : 36, torch::kFloat)) / 3;
      if (!is_bias)
        value = value.view({6, 6});
      params.push_back(
          {.name = "param" + std::to_string(i),
           .tensor = value.to(device).requires_grad_()});
    }
  }
  torch::Tensor loss(const torch::Tensor& x) const {
    torch::Tensor y = x;
    for (size_t i = 0; i < params.size(); i += 2)
      y = torch::tanh(
          torch::matmul(y, params[i].tensor.t()) + params[i + 1].tensor);
    return y.square().sum();
  }
  std::vector<Param> params;
};

torch::Tensor input_of(int rank, int micro_batch) {
  return torch::arange(12, torch::kFloat).view({2, 6}) / 7 + rank -
         0.3 * micro_batch;
}

// The gradients, by parameter, of a step of two ranks and two micro-batches.
std::vector<torch::Tensor> gradients_of_two_ranks(
    const GradSyncOptions& options,
    bool is_late,
    Forgotten forgotten = Forgotten::kNothing) {
  std::vector<torch::Tensor> result;
  testing::run_ranks_with_store(2, [&](int rank, const StorePtr& store) {
    const torch::Device device =
        is_late ? late_device(rank) : torch::Device(torch::kCPU);
    use_device(device);
    BackendOptions backend;
    if (is_late)
      backend = testing::staged_backend(forgotten);
    const auto group = make_communicator(
        store, rank, 2, {.name = "dp", .device = device}, backend);
    const Net net(device);
    BucketedGradSync sync(net.params, group, options);
    for (int step = 0; step < 2; ++step) {
      for (int i = 0; i < 2; ++i) {
        sync.set_accumulate_only(i == 0);
        net.loss(to_device(input_of(rank, i), device)).backward();
      }
      if (step == 0) {
        sync.finish();
        sync.zero_main_grads();
        sync.reset();
      }
    }
    sync.finish();
    // Work that is not ordered after the late computation runs before it.
    if (forgotten == Forgotten::kProducer)
      testing::wait_for_transfers();
    std::vector<torch::Tensor> mine;
    for (int i = 0; i < static_cast<int>(sync.params().size()); ++i) {
      mine.push_back(to_host(
          options.sharding == Sharding::kNone ? sync.main_grad(i)
                                              : sync.owned_main_grad(i)));
    }
    if (rank == 0)
      result = std::move(mine);
  });
  return result;
}

GradSyncOptions small_buckets() {
  GradSyncOptions options;
  options.handover = GradHandover::kMainGrad;
  options.finish = FinishMode::kExplicit;
  options.bucket_capacity_bytes = 200;
  options.first_bucket_bytes = 100;
  options.last_bucket_bytes = 100;
  return options;
}

bool are_close(
    const std::vector<torch::Tensor>& a,
    const std::vector<torch::Tensor>& b) {
  bool close = a.size() == b.size();
  for (size_t i = 0; close && i < a.size(); ++i)
    close = torch::allclose(a[i], b[i], 1e-5, 1e-6);
  return close;
}

TEST(DataParallelOnALateDevice, HasTheGradientsOfTheCpu) {
  std::vector<GradSyncOptions> variants(5, small_buckets());
  variants[1].hook = bf16_hook();
  variants[2].hook = fp16_hook();
  variants[3].sharding = Sharding::kOptimizer;
  variants[4].sharding = Sharding::kGradients;
  for (size_t i = 0; i < variants.size(); ++i) {
    const auto expected = gradients_of_two_ranks(variants[i], false);
    for (const Lag lag : kLags) {
      testing::set_lag(lag);
      const auto actual = gradients_of_two_ranks(variants[i], true);
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t p = 0; p < actual.size(); ++p) {
        // The wires round in another order.
        const double tolerance = i == 1 ? 1e-2 : i == 2 ? 2e-3 : 1e-6;
        EXPECT_LE(testing::relative_error(actual[p], expected[p]), tolerance)
            << name_of(lag) << ", variant " << i << ", parameter " << p;
      }
    }
  }
}

// Shows that the tests above can fail.
TEST(DataParallelOnALateDevice, AForgottenWaitIsSeen) {
  const auto expected = gradients_of_two_ranks(small_buckets(), false);
  testing::set_lag(Lag::kCompute);
  EXPECT_FALSE(are_close(
      gradients_of_two_ranks(small_buckets(), true, Forgotten::kProducer),
      expected));
  testing::set_lag(Lag::kHeldTransfers);
  EXPECT_FALSE(are_close(
      gradients_of_two_ranks(small_buckets(), true, Forgotten::kConsumer),
      expected));
}

// ---- training

struct Layout {
  std::string name;
  std::vector<std::string> overrides;
  int ranks = 2;
};

class TrainingOnALateDevice : public ::testing::TestWithParam<Layout> {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<testing::RunsFolder>();
    dataset_ = testing::prepare_bytes(
        *folder_ / "tokens", testing::made_up_text(24000));
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static constexpr int kSteps = 3;

  // Losses and gradient norms of rank 0 of the last stage.
  static std::vector<double> train(
      const Layout& layout,
      bool is_late,
      Forgotten forgotten = Forgotten::kNothing) {
    auto file = testing::tiny_run(dataset_);
    file["training"]["gradient_accumulation_steps"] = 4 / dp_of(layout);
    file["training"]["grad_clip"] = 0.5;
    LoadOptions options;
    options.path = "run.json";
    options.world_size = layout.ranks;
    options.overrides.push_back({"model.kernels=aten"});
    for (const std::string& text : layout.overrides)
      options.overrides.push_back({text});
    const TrainConfig config = parse_train_config(file.dump(), options).config;
    std::vector<double> result;
    testing::run_ranks_with_store(
        layout.ranks, [&](int rank, const StorePtr& store) {
          const torch::Device device =
              is_late ? late_device(rank) : torch::Device(torch::kCPU);
          use_device(device);
          const ProcessMesh mesh(
              config.parallel_dims(),
              rank,
              store,
              {.device = device},
              is_late ? testing::staged_backend(forgotten) : BackendOptions());
          const TrainingData data =
              open_training_data(training_data_options(config));
          TrainStep step(config, mesh, data);
          std::vector<double> mine;
          for (int64_t i = 1; i <= kSteps; ++i) {
            const StepResult done = step.run(i);
            mine.push_back(done.loss);
            mine.push_back(done.grad_norm);
          }
          for (const auto& stage : step.stages())
            stage->sync().weights().need_all();
          StreamMark::of_current_stream(device).wait_on_host();
          mesh.world()->barrier();
          if (rank == layout.ranks - 1)
            result = std::move(mine);
        });
    return result;
  }

  static int dp_of(const Layout& layout) {
    return !layout.overrides.empty() &&
                   layout.overrides.front() == "distributed.dp_size=2"
               ? 2
               : 1;
  }

  static inline std::unique_ptr<testing::RunsFolder> folder_;
  static inline std::string dataset_;
};

TEST_P(TrainingOnALateDevice, HasTheLossesOfOneRankOnTheCpu) {
  const auto expected = train({"", {}, 1}, false);
  for (const Lag lag : kLags) {
    testing::set_lag(lag);
    const auto actual = train(GetParam(), true);
    EXPECT_LE(testing::largest_relative_difference(actual, expected), 2e-5)
        << name_of(lag);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    TrainingOnALateDevice,
    ::testing::Values(
        Layout{"OneRank", {}, 1},
        Layout{"DataParallel", {"distributed.dp_size=2"}},
        Layout{"Zero1", {"distributed.dp_size=2", "distributed.zero_stage=1"}},
        Layout{"Zero2", {"distributed.dp_size=2", "distributed.zero_stage=2"}},
        Layout{"Zero3", {"distributed.dp_size=2", "distributed.zero_stage=3"}},
        Layout{"TensorParallel", {"distributed.tp_size=2"}},
        Layout{
            "SequenceParallel",
            {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
        Layout{"Pipeline", {"distributed.pp_size=2"}},
        Layout{
            "ZeroBubble",
            {"distributed.pp_size=2", "distributed.pp_engine=zero_bubble"}},
        Layout{"ContextParallel", {"distributed.cp_size=2"}}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace brigade

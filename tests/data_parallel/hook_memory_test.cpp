#include "brigade/data_parallel/hook_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "brigade/base/error.h"
#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;
using ::testing::ThrowsMessage;
using torch::Tensor;

using MakeHook = std::function<BucketHook(HookMemoryPtr memory)>;

const std::vector<MakeHook> kHooks = {
    [](HookMemoryPtr memory) { return int8_hook(std::move(memory)); },
    [](HookMemoryPtr memory) {
      return powersgd_hook({.rank = 2}, std::move(memory));
    }};

// A matrix and a vector, reduced by one sync, step by step.
struct MemoryModel {
  MemoryModel(
      const CommunicatorPtr& world,
      const MakeHook& make,
      HookMemoryPtr memory)
      : sync(
            {{"matrix", matrix}, {"vector", vector}},
            world,
            {.hook = make(std::move(memory))}) {}

  // The reduced gradient of the matrix.
  Tensor run_step(int rank, int step) {
    sync.reset();
    ((matrix * pseudo_random({40, 60}, 7 + rank + 10 * step)).sum() +
     (vector * pseudo_random({33}, 3 + rank + step)).sum())
        .backward();
    return matrix.grad().clone();
  }

  Tensor matrix = torch::zeros({40, 60}).requires_grad_();
  Tensor vector = torch::zeros({33}).requires_grad_();
  BucketedGradSync sync;
};

TEST(HookMemory, AHookThatTakesOverGoesOnBitForBit) {
  for (const MakeHook& make : kHooks) {
    run_ranks(2, [&](const CommunicatorPtr& world) {
      const auto memory = std::make_shared<HookMemory>();
      MemoryModel whole(world, make, memory);
      EXPECT_TRUE(memory->tensors().empty());
      for (int step = 0; step < 3; ++step)
        whole.run_step(world->rank(), step);
      const auto restored = std::make_shared<HookMemory>();
      for (const State& kept : memory->tensors())
        restored->restore({kept.name, kept.tensor.clone()});
      MemoryModel continued(world, make, restored);
      MemoryModel fresh(world, make, nullptr);
      for (int step = 3; step < 6; ++step) {
        const Tensor expected = whole.run_step(world->rank(), step);
        EXPECT_TRUE(
            torch::equal(continued.run_step(world->rank(), step), expected));
        EXPECT_FALSE(
            torch::equal(fresh.run_step(world->rank(), step), expected));
      }
      EXPECT_EQ(restored->tensors().size(), memory->tensors().size());
    });
  }
}

TEST(HookMemory, KeepsWhatNoBucketHasTakenYet) {
  HookMemory memory;
  memory.restore({"errors.w", torch::ones({3})});
  ASSERT_EQ(memory.tensors().size(), 1U);
  EXPECT_EQ(memory.tensors()[0].name, "errors.w");
}

// Factors are kept.
TEST(HookMemory, DropsErrorsAlone) {
  for (const MakeHook& make : kHooks) {
    run_ranks(2, [&](const CommunicatorPtr& world) {
      const auto memory = std::make_shared<HookMemory>();
      MemoryModel model(world, make, memory);
      model.run_step(world->rank(), 0);
      const auto kept = [&](const char* kind) {
        double sum = 0;
        for (const State& state : memory->tensors()) {
          if (state.name.starts_with(kind))
            sum += state.tensor.abs().sum().item<double>();
        }
        return sum;
      };
      const double factors = kept("factor.");
      EXPECT_GT(kept("errors."), 0);
      memory->drop_errors();
      EXPECT_EQ(kept("errors."), 0);
      EXPECT_EQ(kept("factor."), factors);
    });
  }
}

TEST(HookMemory, ForgetsBucketsWhoseHookIsGone) {
  run_ranks(2, [&](const CommunicatorPtr& world) {
    const auto memory = std::make_shared<HookMemory>();
    {
      MemoryModel model(world, kHooks[0], memory);
      model.run_step(world->rank(), 0);
      EXPECT_EQ(memory->tensors().size(), 2U);
    }
    EXPECT_TRUE(memory->tensors().empty());
  });
}

TEST(HookMemory, ASecondModelIsRefused) {
  for (const MakeHook& make : kHooks) {
    run_ranks(2, [&](const CommunicatorPtr& world) {
      const auto memory = std::make_shared<HookMemory>();
      MemoryModel model(world, make, memory);
      MemoryModel other(world, make, memory);
      model.run_step(world->rank(), 0);
      EXPECT_THAT(
          [&] { other.run_step(world->rank(), 0); },
          ThrowsMessage<UsageError>(
              HasSubstr("one hook with a HookMemory reduces '")));
    });
  }
}

TEST(HookMemory, RefusesAnotherLength) {
  run_ranks(2, [&](const CommunicatorPtr& world) {
    const auto memory = std::make_shared<HookMemory>();
    memory->restore({"errors.matrix", torch::ones({5})});
    MemoryModel model(world, kHooks[0], memory);
    EXPECT_THAT(
        [&] { model.run_step(world->rank(), 0); },
        ThrowsMessage<DataError>(
            HasSubstr("'errors.matrix' that was restored has 5 elements: "
                      "expected 2400")));
    model.sync.reset();
  });
}

}  // namespace
}  // namespace brigade

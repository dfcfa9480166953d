// Collectives are right whatever mode their tensors were made in, and whatever
// mode the launching and the waiting thread are in.
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/communicator.h"
#include "brigade/comm/process_mesh.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

constexpr int64_t kRowColumns = 4;
constexpr int64_t kFewValues = 24;
// More bytes than the waiting thread adds by itself.
constexpr int64_t kManyValues = (4 << 20) / 4 + 24;

// [rows * numel]: chunk i is i + 1.
Tensor by_chunk(int64_t rows, int64_t numel, torch::ScalarType dtype) {
  return torch::arange(1, rows + 1, torch::kFloat)
      .repeat_interleave(numel)
      .to(dtype);
}

struct Launched {
  WorkPtr work;
  Tensor result;
  Tensor expected;
};

struct NamedCollective {
  std::string name;
  std::function<Launched(Communicator& world, int64_t numel)> launch;
};

Launched sum_of(
    Communicator& world,
    Tensor mine,
    const std::function<WorkPtr(const Tensor&)>& launch) {
  const int ranks = world.size();
  auto work = launch(mine);
  return {
      std::move(work), mine, torch::full_like(mine, ranks * (ranks + 1) / 2)};
}

std::vector<NamedCollective> collectives() {
  const auto mine = [](Communicator& world, int64_t numel, auto dtype) {
    return torch::full(
        {numel}, world.rank() + 1, torch::TensorOptions().dtype(dtype));
  };
  std::vector<NamedCollective> all;
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    const std::string type = c10::toString(dtype);
    all.push_back({"all_reduce " + type, [=](Communicator& world, int64_t n) {
                     return sum_of(world, mine(world, n, dtype), [&](auto& x) {
                       return world.all_reduce(x);
                     });
                   }});
    all.push_back(
        {"reduce_scatter " + type, [=](Communicator& world, int64_t n) {
           const Tensor in = mine(world, n * world.size(), dtype);
           return sum_of(world, mine(world, n, dtype), [&](auto& x) {
             return world.reduce_scatter(x, in);
           });
         }});
    all.push_back({"all_gather " + type, [=](Communicator& world, int64_t n) {
                     const Tensor out =
                         mine(world, n * world.size(), dtype).zero_();
                     return Launched{
                         world.all_gather(out, mine(world, n, dtype)),
                         out,
                         by_chunk(world.size(), n, dtype)};
                   }});
    all.push_back(
        {"all_to_all " + type, [=](Communicator& world, int64_t n) {
           const Tensor out = mine(world, n * world.size(), dtype).zero_();
           return Launched{
               world.all_to_all(out, mine(world, n * world.size(), dtype)),
               out,
               by_chunk(world.size(), n, dtype)};
         }});
    all.push_back(
        {"broadcast " + type, [=](Communicator& world, int64_t n) {
           const Tensor x = mine(world, n, dtype);
           return Launched{world.broadcast(x, 0), x, torch::ones_like(x)};
         }});
  }
  all.push_back({"all_reduce_as_bf16", [=](Communicator& world, int64_t n) {
                   return sum_of(
                       world, mine(world, n, torch::kFloat), [&](auto& x) {
                         return world.all_reduce_as_bf16(x);
                       });
                 }});
  all.push_back(
      {"all_reduce_as_bf16 of an odd number",
       [=](Communicator& world, int64_t n) {
         return sum_of(
             world,
             mine(world, n * world.size() + 1, torch::kFloat),
             [&](auto& x) { return world.all_reduce_as_bf16(x); });
       }});
  for (const double share : {0.1, 1.0}) {
    all.push_back(
        {share < 1 ? "all_reduce_rows of few" : "all_reduce_rows of all",
         [=](Communicator& world, int64_t n) {
           Tensor x = mine(world, n, torch::kFloat)
                          .view({n / kRowColumns, kRowColumns});
           const auto zeros = static_cast<int64_t>(
               static_cast<double>(n / kRowColumns) * (1 - share));
           x.narrow(0, 0, zeros).zero_();
           auto launched = sum_of(
               world, x, [&](auto& m) { return world.all_reduce_rows(m); });
           launched.expected.narrow(0, 0, zeros).zero_();
           return launched;
         }});
  }
  all.push_back({"exchange", [=](Communicator& world, int64_t n) {
                   const int ranks = world.size();
                   if (ranks == 1) {  // nobody to send to
                     const Tensor same = torch::ones({1});
                     return Launched{make_completed_work(), same, same};
                   }
                   const int previous = (world.rank() + ranks - 1) % ranks;
                   const Tensor out = mine(world, n, torch::kFloat).zero_();
                   return Launched{
                       world.exchange(
                           {mine(world, n, torch::kFloat),
                            (world.rank() + 1) % ranks,
                            out,
                            previous,
                            3}),
                       out,
                       torch::full_like(out, previous + 1)};
                 }});
  return all;
}

struct Modes {
  const char* name;
  bool at_launch;
  bool at_wait;
};

// Runs `body` under InferenceMode if `is_inference`.
template <typename Body>
auto in_mode(bool is_inference, const Body& body) {
  std::optional<c10::InferenceMode> mode;
  if (is_inference)
    mode.emplace();
  return body();
}

void expect_all_right(Communicator& world, const Modes& modes, int64_t numel) {
  for (const auto& collective : collectives()) {
    const auto launched = in_mode(
        modes.at_launch, [&] { return collective.launch(world, numel); });
    in_mode(modes.at_wait, [&] { launched.work->wait(); });
    EXPECT_TRUE(torch::equal(launched.result, launched.expected))
        << collective.name << " of " << numel << ", " << modes.name;
  }
}

constexpr Modes kAllModes[] = {
    {"evaluated", true, true},
    {"waited for outside", true, false},
    {"waited for under it", false, true},
    {"trained", false, false},
};

class InferenceModeTest : public ::testing::TestWithParam<int> {};

TEST_P(InferenceModeTest, CollectivesAreRightUnderItAndAfterIt) {
  testing::run_ranks(GetParam(), [](const CommunicatorPtr& world) {
    for (const Modes& modes : kAllModes)
      expect_all_right(*world, modes, kFewValues);
    for (const Modes& modes : kAllModes)
      expect_all_right(*world, modes, kManyValues);
  });
}

// Tensors made under InferenceMode are used after it.
TEST_P(InferenceModeTest, CollectivesTakeTensorsThatWereMadeUnderIt) {
  testing::run_ranks(GetParam(), [](const CommunicatorPtr& world) {
    const int ranks = world->size();
    const auto [rounded, gathered] = in_mode(true, [&] {
      return std::pair(
          torch::full({kFewValues}, world->rank() + 1, torch::kBFloat16),
          torch::zeros({kFewValues * ranks}, torch::kBFloat16));
    });
    ASSERT_TRUE(rounded.is_inference());
    world->all_gather(gathered, rounded)->wait();
    world->all_reduce(rounded)->wait();
    EXPECT_TRUE(
        torch::equal(gathered, by_chunk(ranks, kFewValues, torch::kBFloat16)));
    EXPECT_EQ(rounded[0].item<float>(), ranks * (ranks + 1) / 2);
  });
}

TEST_P(InferenceModeTest, CollectivesLeaveVersionCountersAlone) {
  testing::run_ranks(GetParam(), [](const CommunicatorPtr& world) {
    for (const int64_t numel : {kFewValues, kManyValues}) {
      for (const auto& collective : collectives()) {
        const auto launched = collective.launch(*world, numel);
        const auto version = launched.result._version();
        launched.work->wait();
        EXPECT_EQ(launched.result._version(), version)
            << collective.name << " of " << numel;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, InferenceModeTest, ::testing::Values(1, 2, 3));

TEST(InferenceMode, CollectivesByHostAreRightUnderItAndAfterIt) {
  testing::run_ranks_with_store(4, [](int rank, const StorePtr& store) {
    BackendOptions backend;
    backend.hosts = {"a", "a", "b", "b"};
    backend.hierarchy = HierarchyChoice::kAuto;
    const ProcessMesh mesh(
        {.dp = 4}, rank, store, {.check_collectives = true}, backend);
    ASSERT_NE(mesh.dp_cp(), mesh.world());
    for (const Modes& modes : kAllModes)
      expect_all_right(*mesh.dp_cp(), modes, kFewValues);
    for (const auto& collective : collectives()) {
      const auto launched = collective.launch(*mesh.dp_cp(), kFewValues);
      const auto version = launched.result._version();
      launched.work->wait();
      EXPECT_EQ(launched.result._version(), version) << collective.name;
    }
  });
}

// The error is not a lost peer: the message's tag is invalid.
TEST(Communicator, AnErrorOfTheCallersOwnLeavesTheGroupOpen) {
  testing::run_ranks(2, [](const CommunicatorPtr& world) {
    auto value = torch::ones({3});
    try {
      world->send(value, 1 - world->rank(), -1);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUnexpected);
      EXPECT_THAT(error.what(), HasSubstr("send #"));
      EXPECT_THAT(error.what(), HasSubstr("the tag -1 is not in [0, "));
    }
    auto all = torch::zeros({6});
    world->all_gather(all, value)->wait();
    world->all_reduce(value)->wait();
    EXPECT_EQ(value.sum().item<float>(), 6);
    EXPECT_EQ(all.sum().item<float>(), 6);
  });
}

}  // namespace
}  // namespace brigade

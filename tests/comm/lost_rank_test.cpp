// The errors of the other ranks when a rank leaves a group or never joins it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/gloo/gloo_communicator.h"
#include "tests/support/program.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kNever;
using testing::run_ranks;
using ::testing::ThrowsMessage;
using torch::Tensor;

struct Operation {
  std::string name;
  int ranks;
  std::string told;  // in the error
  // Drops its tensors, which the operation itself must keep alive.
  std::function<WorkPtr(Communicator&)> launch;
};

Tensor ones(int64_t numel, torch::ScalarType dtype = torch::kFloat) {
  return torch::ones({numel}, dtype);
}

// Operations that no rank can finish without the last one.
std::vector<Operation> operations() {
  const auto all_reduce = [](torch::ScalarType dtype) {
    return [dtype](Communicator& world) {
      return world.all_reduce(ones(10, dtype));
    };
  };
  const auto as_bf16 = [](int64_t numel) {
    return [numel](Communicator& world) {
      return world.all_reduce_as_bf16(ones(numel));
    };
  };
  return {
      // Composed of messages.
      {"AllGather",
       3,
       "all_gather #1 of 12 x Float",
       [](Communicator& world) { return world.all_gather(ones(12), ones(4)); }},
      {"ReduceScatter",
       3,
       "reduce_scatter #1 of 12 x Float",
       [](Communicator& world) {
         return world.reduce_scatter(ones(4), ones(12));
       }},
      {"Bf16SumOfPair",
       2,
       "all_reduce #1 of 10 x BFloat16",
       all_reduce(torch::kBFloat16)},
      {"Bf16SumInChunks",
       3,
       "all_reduce #1 of 10 x BFloat16",
       all_reduce(torch::kBFloat16)},
      {"SumAsBf16InSlices", 3, "all_reduce #1 of 12 x BFloat16", as_bf16(12)},
      {"SumOfRows",
       3,
       "all_reduce_rows #1 of 12 x Float",
       [](Communicator& world) {
         return world.all_reduce_rows(ones(12).view({6, 2}));
       }},
      {"SumAsBf16OfPairInSlices",
       2,
       "all_reduce #1 of 12 x BFloat16",
       as_bf16(12)},
      {"SumAsBf16OfWhatDoesNotDivide",
       3,
       "all_reduce #1 of 10 x BFloat16",
       as_bf16(10)},
      {"Recv",
       2,
       "recv #1 of 10 x Float with rank 1",
       [](Communicator& world) { return world.recv(ones(10), 1); }},
      {"Send",
       2,
       "send #1 of 10 x Float with rank 1",
       [](Communicator& world) { return world.send(ones(10), 1); }},
      // Gloo's own collectives.
      {"AllReduce",
       3,
       "all_reduce #1 of 10 x Float",
       all_reduce(torch::kFloat)},
      {"Broadcast",
       3,
       "broadcast #1 of 10 x Float with rank 2",
       [](Communicator& world) { return world.broadcast(ones(10), 2); }},
      {"AllToAll",
       3,
       "all_to_all #1 of 12 x Float",
       [](Communicator& world) {
         return world.all_to_all(ones(12), ones(12));
       }},
  };
}

bool is_last(const Communicator& world) {
  return world.rank() == world.size() - 1;
}

// Waits twice: every wait() of a work reports its failure.
void expect_named(
    const Operation& operation,
    const Communicator& world,
    const WorkPtr& work) {
  const int last = world.size() - 1;
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(
        [&] { work->wait(); },
        ThrowsMessage<CommError>(AllOf(
            HasSubstr(fmt::format(
                "{} in group 'world' failed on rank {} of {}: ",
                operation.told,
                world.rank(),
                world.size())),
            HasSubstr(
                fmt::format("; rank {} of this group did not report", last)))))
        << operation.name << " on rank " << world.rank();
  }
}

// Launched after the last rank has left, an operation may fail at once.
void expect_named(const Operation& operation, Communicator& world) {
  WorkPtr work;
  try {
    work = operation.launch(world);
  } catch (const CommError& error) {
    EXPECT_THAT(
        error.what(), HasSubstr(operation.told + " in group 'world' failed"));
    EXPECT_THAT(
        error.what(), HasSubstr(fmt::format("; rank {} of", world.size() - 1)));
    return;
  }
  expect_named(operation, world, work);
}

enum class Way {
  kLeaves,  // closes its connections
  kStalls,  // keeps them, and does nothing
};

// Runs the body on every rank but the last, after the group has worked once and
// the last rank is away.
void run_without_last(
    Way way,
    int ranks,
    std::chrono::milliseconds timeout,
    const std::function<void(CommunicatorPtr world)>& body) {
  std::latch is_away(1);
  std::latch are_done(ranks - 1);
  run_ranks(
      ranks,
      [&](CommunicatorPtr world) {
        if (is_last(*world)) {
          if (way == Way::kLeaves)
            world.reset();
          is_away.count_down();
          are_done.wait();
          return;
        }
        is_away.wait();
        try {
          body(std::move(world));
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
        }
        are_done.count_down();
      },
      {.check_collectives = false,
       .timeout = timeout,
       .max_records = 0,
       .first = [](Communicator& world) { world.barrier(); }});
}

// Runs each operation in its own group, all at the same time, since they mostly
// wait.
void for_each_operation(
    const std::function<void(const Operation& operation)>& body) {
  const std::vector<Operation> all = operations();
  std::vector<std::jthread> threads;
  threads.reserve(all.size());
  for (const Operation& operation : all)
    threads.emplace_back([&] { body(operation); });
}

TEST(LostRank, IsNamedAtOnceAfterItHasLeft) {
  for_each_operation([](const Operation& operation) {
    run_without_last(
        Way::kLeaves,
        operation.ranks,
        kNever,
        [&](const CommunicatorPtr& world) { expect_named(operation, *world); });
  });
}

TEST(LostRank, IsNamedAtOnceWhenItLeavesWhileOthersWait) {
  for_each_operation([](const Operation& operation) {
    std::latch are_launched(operation.ranks - 1);
    run_ranks(
        operation.ranks,
        [&](CommunicatorPtr world) {
          world->barrier();
          if (is_last(*world)) {
            are_launched.wait();
            return;
          }
          const WorkPtr work = operation.launch(*world);
          are_launched.count_down();
          expect_named(operation, *world, work);
        },
        {.check_collectives = false, .timeout = kNever, .max_records = 0});
  });
}

TEST(LostRank, IsNamedAfterTheTimeoutWhenItStalls) {
  for_each_operation([](const Operation& operation) {
    run_without_last(
        Way::kStalls,
        operation.ranks,
        std::chrono::seconds(2),
        [&](const CommunicatorPtr& world) {
          expect_named(operation, *world, operation.launch(*world));
        });
  });
}

int threads_of_this_process() {
  int count = 0;
  for ([[maybe_unused]] const auto& task :
       std::filesystem::directory_iterator("/proc/self/task"))
    ++count;
  return count;
}

// The groups end with operations under way that nobody waits for.
TEST(LostRank, LeavesGroupsThatEndAndNoThreadBehind) {
  run_ranks(2, [](const CommunicatorPtr&) {});
  const int threads = threads_of_this_process();
  for_each_operation([](const Operation& operation) {
    run_without_last(
        Way::kStalls,
        operation.ranks,
        std::chrono::seconds(2),
        [&](CommunicatorPtr world) {
          try {
            for (int i = 0; i < 3; ++i)
              operation.launch(*world);
          } catch (const CommError&) {
            // The first operation may have timed out on a busy machine.
          }
          world.reset();
        });
  });
  // A joined thread stays listed for a moment.
  while (threads_of_this_process() > threads)
    std::this_thread::yield();
}

// Collectives whose messages exceed the sockets' buffers, each in its own
// group. The last rank is another process.
constexpr int kRanks = 3;
constexpr int64_t kChunk = 3 << 20;

struct LargeOperation {
  std::string name;
  std::string told;
  // chunks: kRanks * kChunk elements, chunk: kChunk.
  std::function<WorkPtr(Communicator&, Tensor chunks, Tensor chunk)> launch;
  torch::ScalarType dtype = torch::kFloat;
};

std::vector<LargeOperation> large_operations() {
  const auto all_reduce = [](Communicator& world, Tensor chunks, Tensor) {
    return world.all_reduce(std::move(chunks));
  };
  return {
      {"SumAsBf16InSlices",
       "all_reduce #0",
       [](Communicator& world, Tensor chunks, Tensor) {
         return world.all_reduce_as_bf16(std::move(chunks));
       }},
      {"AllGather",
       "all_gather #0",
       [](Communicator& world, Tensor chunks, Tensor chunk) {
         return world.all_gather(std::move(chunks), std::move(chunk));
       }},
      {"ReduceScatter",
       "reduce_scatter #0",
       [](Communicator& world, Tensor chunks, Tensor chunk) {
         return world.reduce_scatter(std::move(chunk), std::move(chunks));
       }},
      {"SumOfRows",
       "all_reduce_rows #0",
       [](Communicator& world, Tensor chunks, Tensor chunk) {
         return world.all_reduce_rows(chunks.view({-1, chunk.numel() / 8}));
       }},
      {"Bf16SumInChunks", "all_reduce #0", all_reduce, torch::kBFloat16},
      {"AllReduce", "all_reduce #0", all_reduce},
  };
}

// Made in advance so that launches follow each other without a pause.
struct Tensors {
  explicit Tensors(const LargeOperation& operation)
      : chunks(ones(kRanks * kChunk, operation.dtype)),
        chunk(ones(kChunk, operation.dtype)) {}
  Tensor chunks;
  Tensor chunk;
};

// Joins one group per operation, one after the other: processes that meet in a
// file slow each other down.
std::vector<CommunicatorPtr> join(
    const std::vector<LargeOperation>& operations,
    const StorePtr& store,
    int rank) {
  std::vector<CommunicatorPtr> groups;
  groups.reserve(operations.size());
  for (const LargeOperation& operation : operations) {
    groups.push_back(testing::join_patiently(
        store->with_prefix(operation.name),
        rank,
        kRanks,
        [&](const StorePtr& place) {
          return make_gloo_communicator(
              place, rank, kRanks, {.timeout = std::chrono::seconds(10)});
        }));
  }
  return groups;
}

StorePtr store_in(const std::filesystem::path& file) {
  return make_file_store(file, 2, kNever);
}

constexpr const char* kFirstHasLaunched = "the first rank has launched";
constexpr const char* kLastIsDead = "the last rank is dead";

// The body of the last rank's process.
TEST(LastRank, DISABLED_DiesWithMessagesUnderWay) {
  const StorePtr store = store_in(std::getenv("LOST_RANK_STORE"));
  store->set("last rank is there", "1");
  const std::vector<LargeOperation> all = large_operations();
  const auto groups = join(all, store, kRanks - 1);
  const std::vector<Tensors> tensors(all.begin(), all.end());
  store->get(kFirstHasLaunched);
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < all.size(); ++i) {
    works.push_back(
        all[i].launch(*groups[i], tensors[i].chunks, tensors[i].chunk));
  }
  ::raise(SIGKILL);
}

// Whether an operation may have received all that it needs from the last rank.
enum class MayEnd { kYes, kNo };

void expect_last_rank_named(
    const LargeOperation& operation,
    MayEnd may_end,
    const std::function<WorkPtr()>& launch) {
  try {
    launch()->wait();
    if (may_end == MayEnd::kNo)
      ADD_FAILURE() << operation.name << ": no error";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr(operation.told));
    EXPECT_THAT(error.what(), HasSubstr("; rank 2 of this group"));
  }
}

// The first rank exchanges messages with the last one while that dies. The
// second begins after it has died, so none of its collectives can finish,
// however slow any process is.
void lose_last_rank(int rank, const StorePtr& store) try {
  const std::vector<LargeOperation> all = large_operations();
  const auto groups = join(all, store, rank);
  if (rank == 1)
    store->get(kLastIsDead);
  std::vector<std::jthread> waiting;
  std::latch have_launched(static_cast<std::ptrdiff_t>(all.size()));
  for (size_t i = 0; i < all.size(); ++i) {
    waiting.emplace_back([&, i, rank] {
      Tensors tensors(all[i]);
      expect_last_rank_named(
          all[i], rank == 1 ? MayEnd::kNo : MayEnd::kYes, [&] {
            const WorkPtr work = all[i].launch(
                *groups[i],
                std::move(tensors.chunks),
                std::move(tensors.chunk));
            have_launched.count_down();
            return work;
          });
    });
  }
  if (rank == 0) {
    have_launched.wait();
    store->set(kFirstHasLaunched, "1");
  }
} catch (const std::exception& error) {
  ADD_FAILURE() << "rank " << rank << ": " << error.what();
}

TEST(LostRank, IsNamedWhenItDiesWithMessagesUnderWay) {
  const testing::RunsFolder folder;
  const auto file = folder / "store";
  testing::StartedProgram last_rank(
      std::filesystem::read_symlink("/proc/self/exe"),
      {"--gtest_filter=LastRank.DISABLED_DiesWithMessagesUnderWay",
       "--gtest_also_run_disabled_tests",
       "--gtest_output="},
      {{"LOST_RANK_STORE", file.string()},
       {"GTEST_TOTAL_SHARDS", "1"},
       {"GTEST_SHARD_INDEX", "0"}});
  const StorePtr store = store_in(file);
  store->get("last rank is there");
  std::jthread first([&] { lose_last_rank(0, store); });
  std::jthread second([&] { lose_last_rank(1, store); });
  EXPECT_EQ(last_rank.wait().exit_code, 128 + SIGKILL);
  store->set(kLastIsDead, "1");
}

}  // namespace
}  // namespace brigade

#include "brigade/comm/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <latch>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/flight/analysis.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

CommunicatorOptions recorded_by(const FlightRecorderPtr& recorder) {
  CommunicatorOptions options;
  options.timeout = testing::kNever;
  options.flight_recorder = recorder;
  return options;
}

TEST(FlightRecorderTest, EveryGroupNumbersItsCollectivesFromZero) {
  const ParallelDims dims{.dp = 2, .tp = 2, .pp = 1, .cp = 1};
  std::vector<FlightRecording> recordings(4);
  testing::run_ranks_with_store(4, [&](int rank, const StorePtr& store) {
    const auto recorder = std::make_shared<FlightRecorder>(rank);
    const ProcessMesh mesh(dims, rank, store, recorded_by(recorder));
    recorder->begin_step(5);
    mesh.world()->all_reduce(torch::ones({3}))->wait();
    mesh.axis(Axis::kTp)->all_reduce(torch::ones({2}))->wait();
    mesh.axis(Axis::kDp)->broadcast(torch::ones({4}), 1)->wait();
    EXPECT_GT(recorder->waited_ns(), 0);
    recordings[static_cast<size_t>(rank)] = recorder->recording("test");
  });
  for (const FlightRecording& recording : recordings) {
    ASSERT_THAT(recording.operations, SizeIs(3));
    for (const FlightOperation& operation : recording.operations) {
      EXPECT_EQ(operation.state, FlightState::kFinished);
      EXPECT_TRUE(operation.is_awaited);
      EXPECT_EQ(operation.sequence_number, 0);
      EXPECT_EQ(operation.step, 5);
      EXPECT_GT(operation.finished_ns, operation.launched_ns);
    }
    const FlightOperation& last = recording.operations.back();
    const auto& group = recording.groups[static_cast<size_t>(last.group)];
    EXPECT_EQ(last.kind, "broadcast");
    EXPECT_EQ(last.peer, group.members[1]);
    EXPECT_EQ(last.numel, 4);
  }
  const auto& of_3 = recordings[3];
  EXPECT_EQ(
      of_3.groups[static_cast<size_t>(of_3.operations[1].group)].member_names,
      std::vector<std::string>({"rank 2 (dp 1, tp 0)", "rank 3 (dp 1, tp 1)"}));
}

TEST(FlightRecorderTest, MessagesAreNumberedPerPeerAndDirection) {
  std::vector<FlightRecording> recordings(3);
  testing::run_ranks_with_store(3, [&](int rank, const StorePtr& store) {
    const auto recorder = std::make_shared<FlightRecorder>(rank);
    const ProcessMesh mesh({.pp = 3}, rank, store, recorded_by(recorder));
    Communicator& world = *mesh.world();
    auto value = torch::ones({2});
    if (rank == 0) {
      world.send(value, 2)->wait();
      world.send(value, 1)->wait();
      world.send(value, 1)->wait();
    } else {
      world.recv(value, 0)->wait();
      if (rank == 1)
        world.recv(value, 0)->wait();
    }
    recordings[static_cast<size_t>(rank)] = recorder->recording("test");
  });
  std::vector<int64_t> sent;
  for (const FlightOperation& operation : recordings[0].operations)
    sent.push_back(operation.sequence_number);
  EXPECT_THAT(sent, ElementsAre(0, 0, 1));
  EXPECT_EQ(recordings[1].operations.back().sequence_number, 1);
}

TEST(FlightRecorderTest, TheEndIsSeenWithoutAWaitAndAFailureIsToo) {
  std::latch is_recorded(2);
  std::vector<FlightRecording> recordings(2);
  testing::run_ranks_with_store(2, [&](int rank, const StorePtr& store) {
    const auto recorder = std::make_shared<FlightRecorder>(rank);
    CommunicatorOptions options = recorded_by(recorder);
    options.check_collectives = true;
    const ProcessMesh mesh({.dp = 2}, rank, store, options);
    Communicator& world = *mesh.world();
    const auto unwaited = world.all_reduce(torch::ones({2}));
    while (!unwaited->is_completed())
      std::this_thread::yield();
    const auto seen = recorder->recording("").operations.at(0);
    EXPECT_EQ(seen.state, FlightState::kFinished);
    EXPECT_FALSE(seen.is_awaited);
    // Rank 0 sums where rank 1 gathers.
    try {
      if (rank == 0)
        world.all_reduce(torch::ones({4}))->wait();
      else
        world.all_gather(torch::ones({4}), torch::ones({2}))->wait();
      ADD_FAILURE() << "different collectives passed";
    } catch (const CommError&) {
    }
    recordings[static_cast<size_t>(rank)] = recorder->recording("test");
    is_recorded.arrive_and_wait();
  });
  EXPECT_EQ(recordings[0].operations.back().state, FlightState::kFailed);
  EXPECT_THAT(
      summarize(analyze_flights(recordings)),
      AllOf(
          HasSubstr("launched different operations as #1"),
          HasSubstr("rank 0 (dp 0) all_reduce of 4 x Float"),
          HasSubstr("rank 1 (dp 1) all_gather of 4 x Float")));
}

TEST(FlightRecorderTest, OnlyTheLatestOperationsAreKept) {
  FlightRecorder recorder(0);
  recorder.add_group({.name = "dp", .members = {0, 1}, .member_names = {}});
  const auto begin = [&](int64_t number) {
    FlightOperation operation;
    operation.sequence_number = number;
    return recorder.begin(operation);
  };
  const int64_t first = begin(0);
  for (int64_t number = 1; number <= FlightRecorder::kCapacity; ++number)
    begin(number);
  recorder.failed(first);  // it is forgotten already
  const auto recording = recorder.recording("test");
  ASSERT_THAT(recording.operations, SizeIs(FlightRecorder::kCapacity));
  EXPECT_EQ(recording.operations.front().sequence_number, 1);
  EXPECT_EQ(recording.operations.front().state, FlightState::kUnderWay);
}

}  // namespace
}  // namespace brigade

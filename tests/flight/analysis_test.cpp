#include "brigade/flight/analysis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StrEq;

const FlightGroup kWorld{
    .name = "world",
    .members = {0, 1, 2, 3},
    .member_names = {
        "rank 0 (dp 0, tp 0)",
        "rank 1 (dp 0, tp 1)",
        "rank 2 (dp 1, tp 0)",
        "rank 3 (dp 1, tp 1)"}};

FlightRecording recording_of(int rank, std::vector<FlightGroup> groups) {
  FlightRecording recording;
  recording.rank = rank;
  recording.step = 7;
  recording.reason = "test";
  recording.groups = std::move(groups);
  return recording;
}

FlightOperation operation(
    int64_t number,
    FlightState state,
    const std::string& kind = "all_reduce") {
  FlightOperation result;
  result.kind = kind;
  result.dtype = "Float";
  result.numel = 10;
  result.sequence_number = number;
  result.step = 7;
  result.state = state;
  return result;
}

FlightOperation message(const std::string& kind, int peer, int64_t number) {
  FlightOperation result = operation(number, FlightState::kUnderWay, kind);
  result.peer = peer;
  return result;
}

// Rank 1 was killed: what it left was asked for long before.
TEST(FlightAnalysis, OlderRecordingsThatWereAskedForAreNotOfTheFailure) {
  std::vector<FlightRecording> recordings;
  for (int rank = 0; rank < 4; ++rank) {
    recordings.push_back(recording_of(rank, {kWorld}));
    recordings.back().operations = {
        operation(40, FlightState::kFinished),
        operation(41, FlightState::kUnderWay)};
  }
  recordings[1].cause = FlightCause::kRequest;
  recordings[1].step = 3;
  recordings[1].operations = {
      operation(3, FlightState::kUnderWay, "all_gather")};
  EXPECT_TRUE(tell_failure(recordings));
  const FlightAnalysis analysis = analyze_flights(recordings);
  EXPECT_THAT(analysis.without_recording, ElementsAre(1));
  EXPECT_THAT(analysis.suspects, ElementsAre(1));
  EXPECT_THAT(
      describe(analysis, recordings),
      AllOf(
          HasSubstr("rank 1 (dp 0, tp 1) did not arrive at all_reduce #41"),
          Not(HasSubstr("all_gather"))));

  // One of the failure's step or a later one tells where the rank was.
  recordings[1].step = 7;
  EXPECT_THAT(analyze_flights(recordings).without_recording, IsEmpty());

  recordings[1].step = 3;
  for (FlightRecording& recording : recordings)
    recording.cause = FlightCause::kRequest;
  EXPECT_FALSE(tell_failure(recordings));
  EXPECT_THAT(analyze_flights(recordings).without_recording, IsEmpty());
}

TEST(FlightAnalysis, NamesTheRankThatDidNotArrive) {
  std::vector<FlightRecording> recordings;
  for (int rank = 0; rank < 4; ++rank) {
    recordings.push_back(recording_of(rank, {kWorld}));
    auto& operations = recordings.back().operations;
    operations.push_back(operation(4, FlightState::kFinished));
    if (rank != 2)
      operations.push_back(operation(5, FlightState::kUnderWay));
  }
  const FlightAnalysis analysis = analyze_flights(recordings);
  EXPECT_THAT(analysis.suspects, ElementsAre(2));
  EXPECT_THAT(
      summarize(analysis),
      StrEq("rank 2 (dp 1, tp 0) did not arrive at all_reduce #5 of 10 x Float "
            "in group 'world' at step 7; rank 0 (dp 0, tp 0), rank 1 (dp 0, tp "
            "1), rank 3 (dp 1, tp 1) waited there"));
}

TEST(FlightAnalysis, ARankWithoutARecordingIsTheSuspect) {
  std::vector<FlightRecording> recordings;
  for (const int rank : {0, 1, 2}) {
    recordings.push_back(recording_of(rank, {kWorld}));
    recordings.back().operations = {operation(5, FlightState::kUnderWay)};
  }
  const FlightAnalysis analysis = analyze_flights(recordings);
  EXPECT_THAT(analysis.without_recording, ElementsAre(3));
  EXPECT_THAT(analysis.suspects, ElementsAre(3));
  EXPECT_THAT(
      describe(analysis, recordings),
      AllOf(
          HasSubstr("rank 3 (dp 1, tp 1): left no recording"),
          HasSubstr("look first at rank 3 (dp 1, tp 1)")));
}

// Rank 0 waits for 1 in tp, and 2 for 0 in dp: the suspect waits for nobody.
TEST(FlightAnalysis, AChainOfWaitsLeadsToItsEnd) {
  const FlightGroup tp{.name = "tp", .members = {0, 1}, .member_names = {}};
  const FlightGroup dp{.name = "dp", .members = {0, 2}, .member_names = {}};
  std::vector<FlightRecording> recordings = {
      recording_of(0, {tp, dp}), recording_of(1, {tp}), recording_of(2, {dp})};
  recordings[0].operations = {operation(3, FlightState::kUnderWay)};
  recordings[1].operations = {operation(2, FlightState::kFinished)};
  recordings[2].operations = {operation(8, FlightState::kFailed)};
  const FlightAnalysis analysis = analyze_flights(recordings);
  EXPECT_EQ(analysis.findings.size(), 2U);
  EXPECT_THAT(analysis.suspects, ElementsAre(1));
  EXPECT_THAT(summarize(analysis), HasSubstr("rank 1 did not arrive"));
}

TEST(FlightAnalysis, RanksThatLaunchedDifferentOperationsAreListed) {
  std::vector<FlightRecording> recordings;
  for (int rank = 0; rank < 4; ++rank) {
    recordings.push_back(recording_of(rank, {kWorld}));
    auto wrong = operation(
        5, FlightState::kUnderWay, rank == 1 ? "all_gather" : "all_reduce");
    recordings.back().operations = {wrong};
  }
  const FlightAnalysis analysis = analyze_flights(recordings);
  EXPECT_THAT(analysis.suspects, ElementsAre(1));
  EXPECT_THAT(
      summarize(analysis),
      AllOf(
          HasSubstr("launched different operations as #5"),
          HasSubstr("rank 1 (dp 0, tp 1) all_gather of 10 x Float")));
}

TEST(FlightAnalysis, AMessageThatWasNeverSentNamesItsSender) {
  const FlightGroup pp{.name = "pp", .members = {0, 1}, .member_names = {}};
  std::vector<FlightRecording> recordings = {
      recording_of(0, {pp}), recording_of(1, {pp})};
  recordings[0].operations = {message("send", 1, 0)};
  recordings[1].operations = {message("recv", 0, 0), message("recv", 0, 1)};
  recordings[1].operations[0].state = FlightState::kFinished;
  const FlightAnalysis analysis = analyze_flights(recordings);
  EXPECT_THAT(analysis.suspects, ElementsAre(0));
  EXPECT_THAT(summarize(analysis), HasSubstr("which had not sent it"));
}

// Rank 2 waits for 0 in dp, and 0 for a message that 1 began to send: the
// sender is the suspect.
TEST(FlightAnalysis, AMessageOfTwoEndsThatIsWaitedForNamesItsSender) {
  const FlightGroup pp{.name = "pp", .members = {0, 1}, .member_names = {}};
  const FlightGroup dp{.name = "dp", .members = {0, 2}, .member_names = {}};
  std::vector<FlightRecording> recordings = {
      recording_of(0, {pp, dp}), recording_of(1, {pp}), recording_of(2, {dp})};
  recordings[0].operations = {message("send", 1, 5), message("recv", 1, 5)};
  recordings[0].operations[1].is_awaited = true;
  recordings[1].operations = {message("recv", 0, 5), message("send", 0, 5)};
  recordings[2].operations = {operation(8, FlightState::kUnderWay)};
  const FlightAnalysis analysis = analyze_flights(recordings);
  EXPECT_THAT(analysis.suspects, ElementsAre(1));
  EXPECT_THAT(
      summarize(analysis),
      StrEq("rank 0 waited for a message, recv #5 of 10 x Float in group 'pp' "
            "at step 7, from rank 1, which had begun to send it"));
}

// Rank 1 launched a gradient collective, went on and hangs later. Rank 0 waits
// for it in tp and has not reached the gradients.
TEST(FlightAnalysis, ALaunchThatNobodyWaitsForIsNoWait) {
  const FlightGroup dp{.name = "dp", .members = {0, 1, 2}, .member_names = {}};
  const FlightGroup tp{.name = "tp", .members = {0, 1}, .member_names = {}};
  std::vector<FlightRecording> recordings = {
      recording_of(0, {dp, tp}),
      recording_of(1, {dp, tp}),
      recording_of(2, {dp})};
  recordings[0].operations = {operation(3, FlightState::kUnderWay)};
  recordings[0].operations[0].group = 1;
  recordings[0].operations[0].is_awaited = true;
  recordings[1].operations = {operation(8, FlightState::kUnderWay)};
  recordings[2].operations = {operation(8, FlightState::kUnderWay)};
  recordings[2].operations[0].is_awaited = true;
  const FlightAnalysis analysis = analyze_flights(recordings);
  EXPECT_THAT(analysis.suspects, ElementsAre(1));
  EXPECT_THAT(
      summarize(analysis), HasSubstr("rank 1 did not arrive at all_reduce #3"));
  // If nobody waits, nobody is suspected.
  for (FlightRecording& recording : recordings)
    recording.operations[0].is_awaited = false;
  EXPECT_THAT(analyze_flights(recordings).suspects, IsEmpty());
}

// A send that the receiver finished hides none after it.
TEST(FlightAnalysis, AnEarlierMessageDoesNotHideTheOneThatWasNotReceived) {
  const FlightGroup pp{.name = "pp", .members = {0, 1}, .member_names = {}};
  std::vector<FlightRecording> recordings = {
      recording_of(0, {pp}), recording_of(1, {pp})};
  recordings[0].operations = {message("send", 1, 4), message("send", 1, 5)};
  recordings[1].operations = {message("recv", 0, 4)};
  recordings[1].operations[0].state = FlightState::kFinished;
  const FlightAnalysis analysis = analyze_flights(recordings);
  EXPECT_THAT(analysis.suspects, ElementsAre(1));
  EXPECT_THAT(
      summarize(analysis),
      AllOf(HasSubstr("send #5"), HasSubstr("which had not received it")));
}

TEST(FlightAnalysis, ARankThatDidNotRunIsTheSuspectWhereverItWas) {
  std::vector<FlightRecording> recordings;
  for (int rank = 0; rank < 4; ++rank) {
    recordings.push_back(recording_of(rank, {kWorld}));
    recordings.back().operations = {operation(5, FlightState::kUnderWay)};
  }
  recordings[3].paused_ns = 3'500'000'000;
  const FlightAnalysis analysis = analyze_flights(recordings);
  EXPECT_THAT(analysis.suspects, ElementsAre(3));
  EXPECT_THAT(
      summarize(analysis),
      HasSubstr("rank 3 (dp 1, tp 1) did not run for 3.5 s in step 7"));
}

// An operation that a recording has dropped is not missing.
TEST(FlightAnalysis, OperationsThatWereDroppedAreNotMissed) {
  std::vector<FlightRecording> recordings;
  for (int rank = 0; rank < 4; ++rank) {
    recordings.push_back(recording_of(rank, {kWorld}));
    auto& operations = recordings.back().operations;
    if (rank == 0)
      operations.push_back(operation(4, FlightState::kUnderWay));
    operations.push_back(operation(5, FlightState::kFinished));
  }
  const FlightAnalysis analysis = analyze_flights(recordings);
  EXPECT_THAT(analysis.suspects, IsEmpty());
  EXPECT_THAT(summarize(analysis), Not(HasSubstr("did not arrive")));
}

}  // namespace
}  // namespace brigade

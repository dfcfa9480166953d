// Every schedule is proved for many sizes, and the proof itself is held
// against tables that are wrong.
#include "brigade/schedule/schedule.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <iterator>
#include <ostream>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/schedule/make_schedule.h"
#include "brigade/schedule/one_f_one_b.h"

namespace brigade {

void PrintTo(const Action& action, std::ostream* out) {
  *out << describe(action);
}

namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr ActionKind kF = ActionKind::kForward;
constexpr ActionKind kB = ActionKind::kBackward;

TEST(Schedule, EveryKindIsProvedForEverySize) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (int micro_batches = 1; micro_batches <= 14; ++micro_batches) {
      for (ScheduleKind kind :
           {ScheduleKind::kAfab,
            ScheduleKind::kOneFOneB,
            ScheduleKind::kZeroBubble}) {
        const Schedule schedule = make_schedule(
            kind,
            {.ranks = ranks,
             .virtual_stages = 1,
             .micro_batches = micro_batches});
        EXPECT_THAT(validate(schedule), IsEmpty());
      }
      for (int virtual_stages = 1; virtual_stages <= 4; ++virtual_stages) {
        const PipelineSize size{
            .ranks = ranks,
            .virtual_stages = virtual_stages,
            .micro_batches = micro_batches};
        EXPECT_THAT(validate(make_evaluation_schedule(size)), IsEmpty());
        if (virtual_stages >= 2 && micro_batches >= ranks) {
          EXPECT_THAT(
              validate(make_schedule(ScheduleKind::kInterleaved1F1B, size)),
              IsEmpty());
        }
      }
    }
  }
}

TEST(Schedule, LargePipelinesAreProvedToo) {
  for (ScheduleKind kind :
       {ScheduleKind::kAfab,
        ScheduleKind::kOneFOneB,
        ScheduleKind::kInterleaved1F1B,
        ScheduleKind::kZeroBubble}) {
    const bool interleaved = kind == ScheduleKind::kInterleaved1F1B;
    EXPECT_THAT(
        validate(make_schedule(
            kind,
            {.ranks = 16,
             .virtual_stages = interleaved ? 3 : 1,
             .micro_batches = 65})),
        IsEmpty());
  }
}

TEST(Schedule, OneFOneBIsTheTextbookTable) {
  EXPECT_THAT(
      make_one_f_one_b(2, 3).per_rank,
      ElementsAre(
          ElementsAre(
              Action{kF, 0, 0},
              Action{kF, 0, 1},
              Action{kB, 0, 0},
              Action{kF, 0, 2},
              Action{kB, 0, 1},
              Action{kB, 0, 2}),
          ElementsAre(
              Action{kF, 1, 0},
              Action{kB, 1, 0},
              Action{kF, 1, 1},
              Action{kB, 1, 1},
              Action{kF, 1, 2},
              Action{kB, 1, 2})));
}

TEST(Schedule, CommunicationPostsReceivesBeforeTheComputationThatPrecedes) {
  // Gradient 1 is received while micro-batch 0 goes backward.
  const Schedule schedule = add_communication(make_one_f_one_b(2, 2));
  EXPECT_THAT(
      schedule.per_rank[0],
      ElementsAre(
          Action{kF, 0, 0},
          Action{ActionKind::kSendActivation, 0, 0},
          Action{kF, 0, 1},
          Action{ActionKind::kSendActivation, 0, 1},
          Action{ActionKind::kRecvGradient, 0, 0},
          Action{ActionKind::kRecvGradient, 0, 1},
          Action{kB, 0, 0},
          Action{ActionKind::kReduceGradients, 0, 0},
          Action{kB, 0, 1}));
}

TEST(Schedule, ReductionComesBeforeTheLastBackwardOrAfterTheLastWeightHalf) {
  const auto place = [](const Schedule& schedule, int rank) {
    const auto& actions = schedule.per_rank[static_cast<size_t>(rank)];
    const auto found =
        std::find_if(actions.begin(), actions.end(), [](const Action& action) {
          return action.kind == ActionKind::kReduceGradients;
        });
    EXPECT_NE(found, actions.end());
    return std::pair(
        *std::prev(found),
        std::next(found) == actions.end() ? Action{} : *std::next(found));
  };
  const Schedule whole = add_communication(make_one_f_one_b(2, 3));
  EXPECT_EQ(place(whole, 1).second, (Action{kB, 1, 2}));
  const Schedule halves = add_communication(make_zero_bubble(2, 3));
  EXPECT_EQ(
      place(halves, 1).first, (Action{ActionKind::kBackwardWeight, 1, 2}));
}

// --- The proof fails where it must. ---

Schedule good() {
  return add_communication(make_one_f_one_b(3, 4));
}

size_t index_of(const std::vector<Action>& actions, const Action& action) {
  const auto found = std::find(actions.begin(), actions.end(), action);
  EXPECT_NE(found, actions.end()) << describe(action);
  return static_cast<size_t>(found - actions.begin());
}

TEST(ScheduleValidation, FindsAMissingForward) {
  Schedule schedule = good();
  auto& actions = schedule.per_rank[1];
  actions.erase(
      actions.begin() +
      static_cast<std::ptrdiff_t>(index_of(actions, {kF, 1, 3})));
  EXPECT_THAT(
      validate(schedule), Contains(HasSubstr("micro-batch 3 on stage 1: 0")));
}

TEST(ScheduleValidation, FindsABackwardTwice) {
  Schedule schedule = good();
  schedule.per_rank[2].push_back({kB, 2, 0});
  EXPECT_THAT(validate(schedule), Contains(HasSubstr("1 forward, 2 backward")));
}

TEST(ScheduleValidation, FindsABackwardBeforeItsForward) {
  Schedule schedule = good();
  auto& actions = schedule.per_rank[2];
  std::swap(
      actions[index_of(actions, {kF, 2, 1})],
      actions[index_of(actions, {kB, 2, 1})]);
  EXPECT_THAT(
      validate(schedule),
      Contains("backward of micro-batch 1 on stage 2 comes before its "
               "forward"));
}

TEST(ScheduleValidation, FindsAWeightHalfBeforeItsInputHalf) {
  Schedule schedule = add_communication(make_zero_bubble(2, 3));
  auto& actions = schedule.per_rank[0];
  std::swap(
      actions[index_of(actions, {ActionKind::kBackwardInput, 0, 1})],
      actions[index_of(actions, {ActionKind::kBackwardWeight, 0, 1})]);
  EXPECT_THAT(
      validate(schedule), Contains(HasSubstr("comes before its input half")));
}

TEST(ScheduleValidation, FindsRanksThatWaitForEachOther) {
  // Rank 0 wants gradient 0 before it makes activation 1; rank 1 wants
  // activation 1 before it makes gradient 0. Each row is sound by itself.
  Schedule schedule{
      .name = "stuck",
      .ranks = 2,
      .virtual_stages = 1,
      .micro_batches = 2,
      .passes = Passes::kForwardAndBackward,
      .per_rank = {
          {{kF, 0, 0}, {kB, 0, 0}, {kF, 0, 1}, {kB, 0, 1}},
          {{kF, 1, 0}, {kF, 1, 1}, {kB, 1, 0}, {kB, 1, 1}}}};
  EXPECT_THAT(
      validate_computation(schedule),
      ElementsAre(
          HasSubstr("backward of micro-batch 0 on stage 0 waits forever"),
          HasSubstr("forward of micro-batch 1 on stage 1 waits forever")));
}

TEST(ScheduleValidation, FindsTransfersInAnotherOrderAtTheOtherEnd) {
  Schedule schedule = good();
  auto& actions = schedule.per_rank[1];
  std::swap(
      actions[index_of(actions, {ActionKind::kRecvActivation, 1, 0})],
      actions[index_of(actions, {ActionKind::kRecvActivation, 1, 1})]);
  EXPECT_THAT(validate(schedule), Contains(HasSubstr("where rank")));
}

TEST(ScheduleValidation, FindsASendThatNobodyReceives) {
  Schedule schedule = good();
  auto& actions = schedule.per_rank[1];
  actions.erase(
      actions.begin() + static_cast<std::ptrdiff_t>(index_of(
                            actions, {ActionKind::kRecvGradient, 1, 3})));
  EXPECT_THAT(
      validate(schedule),
      Contains("rank 1 waits forever before backward of micro-batch 3 on "
               "stage 1"));
}

TEST(ScheduleValidation, FindsASendBeforeItsTensorExists) {
  Schedule schedule = good();
  auto& actions = schedule.per_rank[0];
  std::swap(
      actions[index_of(actions, {kF, 0, 0})],
      actions[index_of(actions, {ActionKind::kSendActivation, 0, 0})]);
  EXPECT_THAT(
      validate(schedule), Contains(HasSubstr("before its tensor exists")));
}

TEST(ScheduleValidation, FindsAReceiveBehindAnUnansweredOne) {
  // Rank 1 posts the gradient's send only after a receive whose tensor needs
  // that very gradient: matching by tag would pass, one queue a pair does not.
  Schedule schedule{
      .name = "one queue",
      .ranks = 2,
      .virtual_stages = 1,
      .micro_batches = 2,
      .passes = Passes::kForwardAndBackward,
      .per_rank = {
          {{kF, 0, 0},
           {ActionKind::kSendActivation, 0, 0},
           {ActionKind::kRecvGradient, 0, 0},
           {kB, 0, 0},
           {kF, 0, 1},
           {ActionKind::kSendActivation, 0, 1},
           {ActionKind::kRecvGradient, 0, 1},
           {ActionKind::kReduceGradients, 0, 0},
           {kB, 0, 1}},
          {{ActionKind::kRecvActivation, 1, 0},
           {ActionKind::kRecvActivation, 1, 1},
           {kF, 1, 0},
           {kB, 1, 0},
           {ActionKind::kSendGradient, 1, 0},
           {kF, 1, 1},
           {ActionKind::kReduceGradients, 1, 0},
           {kB, 1, 1},
           {ActionKind::kSendGradient, 1, 1}}}};
  EXPECT_THAT(validate_computation(schedule), IsEmpty());
  EXPECT_THAT(validate(schedule), Contains(HasSubstr("where rank")));
}

TEST(ScheduleValidation, FindsARankThatWouldWaitForItsOwnOldSend) {
  // Stage 1 posts no receive before rank 0 is through with three forwards, for
  // the third of which it waits until its first send has ended.
  Schedule schedule{
      .name = "late receives",
      .ranks = 2,
      .virtual_stages = 1,
      .micro_batches = 3,
      .passes = Passes::kForwardOnly,
      .per_rank = {
          {{kF, 0, 0},
           {ActionKind::kSendActivation, 0, 0},
           {kF, 0, 1},
           {ActionKind::kSendActivation, 0, 1},
           {kF, 0, 2},
           {ActionKind::kSendActivation, 0, 2}},
          {{ActionKind::kRecvActivation, 1, 0},
           {kF, 1, 0},
           {ActionKind::kRecvActivation, 1, 1},
           {kF, 1, 1},
           {ActionKind::kRecvActivation, 1, 2},
           {kF, 1, 2}}}};
  EXPECT_THAT(validate(schedule), IsEmpty());
  // Without the receive of micro-batch 0, rank 0 stops before its third
  // computation behind that send.
  schedule.micro_batches = 4;
  schedule.per_rank[0].push_back({kF, 0, 3});
  schedule.per_rank[0].push_back({ActionKind::kSendActivation, 0, 3});
  schedule.per_rank[1] = {{kF, 1, 0}, {kF, 1, 1}, {kF, 1, 2}, {kF, 1, 3}};
  EXPECT_THAT(
      validate(schedule),
      Contains("rank 0 waits forever before forward of micro-batch 3 on stage "
               "0"));
}

TEST(ScheduleValidation, FindsAMissingAndAMisplacedReduction) {
  Schedule schedule = good();
  auto& actions = schedule.per_rank[0];
  const Action reduce{ActionKind::kReduceGradients, 0, 0};
  actions.erase(
      actions.begin() + static_cast<std::ptrdiff_t>(index_of(actions, reduce)));
  EXPECT_THAT(
      validate(schedule),
      ElementsAre("the gradients of stage 0 are reduced 0 times, but once is "
                  "needed"));
  actions.insert(actions.begin(), reduce);
  EXPECT_THAT(
      validate(schedule), ElementsAre(HasSubstr("neither right before")));
}

constexpr ActionKind kR = ActionKind::kReduceGradients;
constexpr ActionKind kInput = ActionKind::kBackwardInput;
constexpr ActionKind kWeight = ActionKind::kBackwardWeight;

// A table of one rank and one stage, made by hand.
Schedule one_stage(int micro_batches, std::vector<Action> actions) {
  return {
      .name = "by hand",
      .ranks = 1,
      .virtual_stages = 1,
      .micro_batches = micro_batches,
      .passes = Passes::kForwardAndBackward,
      .per_rank = {std::move(actions)}};
}

TEST(ScheduleValidation, FindsAReductionWithMoreThanOneWholeBackwardLeft) {
  const Schedule wrong[] = {
      one_stage(1, {{kR, 0, 0}, {kF, 0, 0}, {kB, 0, 0}}),
      one_stage(
          2, {{kF, 0, 0}, {kB, 0, 0}, {kR, 0, 0}, {kF, 0, 1}, {kB, 0, 1}}),
      one_stage(1, {{kF, 0, 0}, {kR, 0, 0}, {kInput, 0, 0}, {kWeight, 0, 0}}),
      one_stage(1, {{kF, 0, 0}, {kInput, 0, 0}, {kR, 0, 0}, {kWeight, 0, 0}}),
      // One whole backward is left, but so is another's weight half.
      one_stage(
          2,
          {{kF, 0, 0},
           {kF, 0, 1},
           {kInput, 0, 0},
           {kR, 0, 0},
           {kB, 0, 1},
           {kWeight, 0, 0}}),
      // All halves are done, but two whole backwards are left.
      one_stage(
          3,
          {{kF, 0, 0},
           {kF, 0, 1},
           {kF, 0, 2},
           {kInput, 0, 0},
           {kWeight, 0, 0},
           {kR, 0, 0},
           {kB, 0, 1},
           {kB, 0, 2}}),
  };
  for (size_t i = 0; i < std::size(wrong); ++i) {
    EXPECT_THAT(
        validate(wrong[i]), ElementsAre(HasSubstr("neither right before")))
        << "table " << i;
  }
}

TEST(
    ScheduleValidation,
    AcceptsAReductionBeforeTheLastWholeBackwardOrAtTheEnd) {
  const Schedule right[] = {
      one_stage(1, {{kF, 0, 0}, {kR, 0, 0}, {kB, 0, 0}}),
      one_stage(1, {{kF, 0, 0}, {kB, 0, 0}, {kR, 0, 0}}),
      one_stage(1, {{kF, 0, 0}, {kInput, 0, 0}, {kWeight, 0, 0}, {kR, 0, 0}}),
      one_stage(
          2,
          {{kF, 0, 0},
           {kF, 0, 1},
           {kInput, 0, 0},
           {kWeight, 0, 0},
           {kR, 0, 0},
           {kB, 0, 1}}),
      one_stage(
          2,
          {{kF, 0, 0},
           {kF, 0, 1},
           {kInput, 0, 0},
           {kB, 0, 1},
           {kWeight, 0, 0},
           {kR, 0, 0}}),
  };
  for (size_t i = 0; i < std::size(right); ++i)
    EXPECT_THAT(validate(right[i]), IsEmpty()) << "table " << i;
}

TEST(ScheduleValidation, FindsAnActionOnTheWrongRankOrOutOfRange) {
  Schedule schedule = good();
  schedule.per_rank[0].push_back({kF, 1, 0});
  EXPECT_THAT(
      validate(schedule), ElementsAre(HasSubstr("that stage lies on rank 1")));
  schedule = good();
  schedule.per_rank[0].push_back({kF, 0, 4});
  EXPECT_THAT(
      validate(schedule),
      ElementsAre(HasSubstr("there are 3 stages and 4 micro-batches")));
}

// --- Bad input. ---

TEST(MakeSchedule, SaysHowManyMicroBatchesItNeeds) {
  std::vector<std::string> problems;
  validate_pipeline_size(
      ScheduleKind::kInterleaved1F1B,
      {.ranks = 4, .virtual_stages = 2, .micro_batches = 3},
      problems);
  validate_pipeline_size(
      ScheduleKind::kOneFOneB,
      {.ranks = 4, .virtual_stages = 1, .micro_batches = 0},
      problems);
  EXPECT_THAT(
      problems,
      ElementsAre(
          "[pipeline_parallel] interleaved_1f1b on 4 ranks needs at least 4 "
          "micro-batches per step (gradient_accumulation_steps), but there are "
          "3",
          "[pipeline_parallel] the number of micro-batches "
          "(gradient_accumulation_steps) is 0, but at least 1 is needed"));
  EXPECT_THROW(
      make_schedule(
          ScheduleKind::kInterleaved1F1B,
          {.ranks = 4, .virtual_stages = 2, .micro_batches = 3}),
      ConfigError);
}

TEST(MakeSchedule, RefusesVirtualStagesThatTheKindDoesNotHave) {
  std::vector<std::string> problems;
  validate_pipeline_size(
      ScheduleKind::kZeroBubble,
      {.ranks = 2, .virtual_stages = 2, .micro_batches = 4},
      problems);
  validate_pipeline_size(
      ScheduleKind::kInterleaved1F1B,
      {.ranks = 2, .virtual_stages = 1, .micro_batches = 4},
      problems);
  EXPECT_THAT(
      problems,
      ElementsAre(
          HasSubstr("zero_bubble has one stage per rank"),
          HasSubstr("needs pp_virtual_stages of at least 2")));
}

TEST(MakeSchedule, RefusesATableThatFitsNoMemory) {
  std::vector<std::string> problems;
  validate_pipeline_size(
      ScheduleKind::kAfab,
      {.ranks = 1 << 20, .virtual_stages = 1, .micro_batches = 1 << 30},
      problems);
  EXPECT_THAT(problems, ElementsAre(HasSubstr("a table may hold")));
}

TEST(MakeSchedule, OneRankRunsEveryKindAsThePlainLoop) {
  for (const ScheduleKind kind :
       {ScheduleKind::kAfab,
        ScheduleKind::kOneFOneB,
        ScheduleKind::kInterleaved1F1B,
        ScheduleKind::kZeroBubble}) {
    const std::string name = to_string(kind);
    const Schedule schedule = make_schedule(
        kind, {.ranks = 1, .virtual_stages = 1, .micro_batches = 3});
    EXPECT_EQ(schedule.name, name);
    int expected = 0;
    int forwards = 0;
    for (const Action& action : schedule.per_rank[0]) {
      EXPECT_FALSE(is_communication(action.kind));
      if (action.kind == kF) {
        // No second micro-batch is kept.
        EXPECT_EQ(forwards++, expected) << name;
      }
      if (action.kind == kB || action.kind == ActionKind::kBackwardInput) {
        EXPECT_EQ(action.micro_batch, expected++) << name;
      }
    }
    EXPECT_EQ(expected, 3) << name;
  }
}

}  // namespace
}  // namespace brigade

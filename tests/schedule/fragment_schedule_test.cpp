#include "brigade/schedule/fragment_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kSend = FragmentAction::kSend;
constexpr auto kMerge = FragmentAction::kMerge;
constexpr auto kAverage = FragmentAction::kAverage;

std::vector<std::string> problems_of(const FragmentSchedule& schedule) {
  std::vector<std::string> problems;
  validate_fragment_schedule(schedule, problems);
  return problems;
}

TEST(FragmentSchedule, OneFragmentWithoutDelayIsExchangedAtTheEndOfARound) {
  const FragmentSchedule diloco{.local_steps = 3};
  for (int64_t step = 1; step <= 9; ++step) {
    const auto events = fragment_events(diloco, step);
    if (step % 3 != 0) {
      EXPECT_THAT(events, IsEmpty()) << step;
    } else {
      EXPECT_THAT(
          events,
          ElementsAre(FragmentEvent{kSend, 0}, FragmentEvent{kMerge, 0}))
          << step;
    }
    EXPECT_FALSE(is_under_way(diloco, 0, step));
  }
}

TEST(FragmentSchedule, IsTheTableOfTheHeader) {
  const FragmentSchedule schedule{.local_steps = 6, .fragments = 2, .delay = 1};
  EXPECT_THAT(
      fragment_events(schedule, 3), ElementsAre(FragmentEvent{kSend, 0}));
  EXPECT_THAT(
      fragment_events(schedule, 4), ElementsAre(FragmentEvent{kMerge, 0}));
  EXPECT_THAT(
      fragment_events(schedule, 6), ElementsAre(FragmentEvent{kSend, 1}));
  EXPECT_THAT(
      fragment_events(schedule, 13), ElementsAre(FragmentEvent{kMerge, 1}));
  EXPECT_THAT(fragment_events(schedule, 1), IsEmpty());
  EXPECT_TRUE(is_under_way(schedule, 0, 3));
  EXPECT_FALSE(is_under_way(schedule, 1, 3));
  EXPECT_FALSE(is_under_way(schedule, 0, 4));
}

TEST(FragmentSchedule, LosesWhatIsNotMergedAtTheEnd) {
  // The header's: steps 4, 7 and 10 merge fragments 0, 1 and 0.
  const FragmentSchedule schedule{.local_steps = 6, .fragments = 2, .delay = 1};
  EXPECT_EQ(steps_not_merged(schedule, 3), 3);
  EXPECT_EQ(steps_not_merged(schedule, 4), 4);
  EXPECT_EQ(steps_not_merged(schedule, 6), 6);
  EXPECT_EQ(steps_not_merged(schedule, 7), 4);
  EXPECT_EQ(steps_not_merged(schedule, 9), 6);
  EXPECT_EQ(steps_not_merged(schedule, 10), 4);
  const FragmentSchedule diloco{.local_steps = 4, .warmup_steps = 2};
  EXPECT_EQ(steps_not_merged(diloco, 6), 0);
  EXPECT_EQ(steps_not_merged(diloco, 9), 3);
  EXPECT_EQ(steps_not_merged(diloco, 1), 0);
  const FragmentSchedule averaging{.warmup_steps = 6, .warmup_interval = 3};
  EXPECT_EQ(steps_not_merged(averaging, 5), 2);
}

TEST(FragmentSchedule, WarmupStepsPutEveryRoundOff) {
  const FragmentSchedule at_once{.local_steps = 6, .fragments = 2, .delay = 1};
  FragmentSchedule later = at_once;
  later.warmup_steps = 10;
  for (int64_t step = 1; step <= 10; ++step) {
    EXPECT_THAT(fragment_events(later, step), IsEmpty()) << step;
    EXPECT_FALSE(is_under_way(later, 0, step)) << step;
    EXPECT_FALSE(is_under_way(later, 1, step)) << step;
  }
  for (int64_t step = 1; step <= 20; ++step) {
    EXPECT_EQ(
        fragment_events(later, 10 + step), fragment_events(at_once, step));
    for (const int fragment : {0, 1})
      EXPECT_EQ(
          is_under_way(later, fragment, 10 + step),
          is_under_way(at_once, fragment, step));
  }
}

TEST(FragmentSchedule, AWarmupByIntervalAveragesTheWholeModelAtTheEndOfEach) {
  const FragmentSchedule schedule{
      .local_steps = 6,
      .fragments = 2,
      .delay = 1,
      .warmup_steps = 4,
      .warmup_interval = 2};
  for (const int64_t step : {1, 3, 5, 6})
    EXPECT_THAT(fragment_events(schedule, step), IsEmpty()) << step;
  for (const int64_t step : {2, 4}) {
    EXPECT_THAT(
        fragment_events(schedule, step),
        ElementsAre(
            FragmentEvent{kSend, 0},
            FragmentEvent{kAverage, 0},
            FragmentEvent{kSend, 1},
            FragmentEvent{kAverage, 1}))
        << step;
    EXPECT_FALSE(is_data_parallel(schedule, step));
    EXPECT_FALSE(is_under_way(schedule, 0, step));
  }
  EXPECT_THAT(
      fragment_events(schedule, 7), ElementsAre(FragmentEvent{kSend, 0}));
  EXPECT_THAT(
      fragment_events(schedule, 8), ElementsAre(FragmentEvent{kMerge, 0}));
  EXPECT_TRUE(is_data_parallel({.local_steps = 6, .warmup_steps = 4}, 4));
  EXPECT_FALSE(is_data_parallel({.local_steps = 6, .warmup_steps = 4}, 5));
}

// By simulation of all small schedules: each fragment is sent once in
// local_steps steps, merged `delay` steps later, and alone under way.
TEST(FragmentSchedule, EverySmallScheduleSendsAndMergesEachFragmentInTurn) {
  for (int64_t local_steps = 1; local_steps <= 12; ++local_steps) {
    for (int fragments = 1; fragments <= local_steps; ++fragments) {
      for (int64_t delay = 0; delay < local_steps / fragments; ++delay) {
        const FragmentSchedule schedule{local_steps, fragments, delay};
        ASSERT_THAT(problems_of(schedule), IsEmpty());
        std::map<int, int64_t> sent_after;  // what is under way
        std::map<int, int64_t> last_sent;
        for (int64_t step = 1; step <= 4 * local_steps; ++step) {
          for (const auto& [action, fragment] :
               fragment_events(schedule, step)) {
            if (action == kSend) {
              EXPECT_TRUE(sent_after.empty());
              sent_after[fragment] = step;
              if (last_sent.contains(fragment)) {
                EXPECT_EQ(step - last_sent[fragment], local_steps);
              } else {
                EXPECT_LE(step, local_steps);
              }
              last_sent[fragment] = step;
            } else {
              ASSERT_TRUE(sent_after.contains(fragment));
              EXPECT_EQ(step - sent_after[fragment], delay);
              sent_after.erase(fragment);
            }
          }
          for (int fragment = 0; fragment < fragments; ++fragment)
            EXPECT_EQ(
                is_under_way(schedule, fragment, step),
                sent_after.contains(fragment));
        }
        EXPECT_EQ(last_sent.size(), static_cast<size_t>(fragments));
      }
    }
  }
}

TEST(FragmentSchedule, RefusesMoreFragmentsThanStepsAndDelaysThatOverlap) {
  EXPECT_THAT(
      problems_of({.local_steps = 2, .fragments = 3}),
      ElementsAre(HasSubstr("outer_fragments = 3 is more than")));
  EXPECT_THAT(
      problems_of({.local_steps = 6, .fragments = 2, .delay = 3}),
      ElementsAre(
          HasSubstr("outer_delay = 3: the next fragment is sent 3 steps "
                    "after one (local_steps / outer_fragments); give "
                    "at most 2")));
  EXPECT_THAT(
      problems_of({.local_steps = 6, .warmup_steps = 10, .warmup_interval = 4}),
      ElementsAre(HasSubstr("local_warmup_interval = 4 does not divide "
                            "/distributed/local_warmup_steps = 10")));
}

TEST(FragmentSchedule, NeighbouringLayersAreInDifferentFragments) {
  EXPECT_EQ(fragment_of_layer(0, 3), 0);
  EXPECT_EQ(fragment_of_layer(1, 3), 1);
  EXPECT_EQ(fragment_of_layer(3, 3), 0);
  EXPECT_EQ(fragment_of_layer(7, 1), 0);
}

}  // namespace
}  // namespace brigade

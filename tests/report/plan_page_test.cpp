// Plans as tables and as a page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "brigade/report/plan_page.h"
#include "brigade/report/plan_table.h"
#include "tests/planner/support.h"

namespace brigade::planner {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

Training small_plan() {
  Training training = llama_on("h100");
  training.batch.sequences = 64;
  return training;
}

TEST(PlanTable, MarksWhatTrainDoesNotKnow) {
  StepEstimator estimator(small_plan());
  Layout layout;
  layout.dims.dp = 8;
  layout.dims.pp = 2;
  layout.schedule = ScheduleKind::kZeroBubble;
  layout.zero_stage = 1;
  const StepEstimate plain = estimator.estimate(layout);
  layout.zero_stage = 2;
  const StepEstimate sharded = estimator.estimate(layout);
  const std::string table = layout_table({sharded, plain}, 10);
  EXPECT_THAT(
      table,
      AllOf(
          HasSubstr("1* dp8-tp1-pp2-cp1-zero2-"),
          HasSubstr("2  dp8-tp1-pp2-cp1-zero1-")));
}

TEST(PlanTable, HasAColumnForTheTrafficOfEachAxis) {
  StepEstimate estimate;
  estimate.memory.resize(1);
  estimate.seconds = 100;
  PassTime& work = estimate.parts.computation;
  work.tp = 1;
  work.cp = 2;
  work.ep = 3;
  work.dp = 4;
  estimate.parts.reduction = 5;
  EXPECT_THAT(
      layout_table({estimate}, 1),
      ContainsRegex(" bubble +tp +cp +ep +dp .*\n.* 1.0% +2.0% +3.0% +9.0% "));
}

TEST(PlanTable, HasARowForEachPartThatTakesTime) {
  StepEstimate estimate;
  estimate.seconds = 100;
  std::vector<std::string> titles;
  double seconds = 0;
  for (const PassPart& part : kPassParts) {
    estimate.parts.computation.*part.seconds = ++seconds;
    titles.emplace_back(part.title);
  }
  EXPECT_EQ(estimate.parts.computation.total(), 66);
  const std::string table = time_table(estimate);
  EXPECT_EQ(
      std::count(table.begin(), table.end(), '\n'),
      static_cast<std::ptrdiff_t>(titles.size()) + 1);
  for (const std::string& title : titles)
    EXPECT_THAT(table, HasSubstr("  " + title + " "));
}

TEST(PlanPage, HoldsEveryLayoutAndNothingFromElsewhere) {
  Training training = small_plan();
  training.shape.name = "a <model>";
  StepEstimator estimator(training);
  const SearchResult result = search(estimator, {.devices = 16});
  PlanPage page;
  page.title = training.shape.name;
  page.device = &training.machine.device;
  page.layouts.assign(result.fitting.begin(), result.fitting.begin() + 3);
  page.drawn_micro_batches = 2;
  page.micro_batches = 4;
  page.timeline = estimator.timeline(page.layouts[0].layout, 2);
  const std::string html = plan_page(page);
  for (const StepEstimate& plan : page.layouts)
    EXPECT_THAT(html, HasSubstr(to_string(plan.layout)));
  EXPECT_THAT(
      html,
      AllOf(
          HasSubstr("a &lt;model&gt;"),
          HasSubstr("forward of micro-batch 1"),
          HasSubstr("2 of 4 micro-batches"),
          HasSubstr("</svg>tp, cp and ep "),
          Not(HasSubstr("<script")),
          Not(HasSubstr("http"))));
}

}  // namespace
}  // namespace brigade::planner

// The executor against the naive loop: one process, one micro-batch after the
// other, on the same model.
#include "brigade/pipeline_parallel/executor.h"

#include <gmock/gmock.h>

#include <future>

#include "brigade/base/error.h"
#include "brigade/schedule/make_schedule.h"
#include "brigade/schedule/simulator.h"
#include "mlp_chain.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kBatch;
using testing::kHidden;
using testing::kTokens;
using testing::MlpChain;
using ::testing::Pair;
using testing::run_ranks;
using ::testing::ThrowsMessage;

constexpr double kLossGradient = 0.125;

ExecutorOptions options(ExecutorCallbacks callbacks = {}) {
  return {
      .transfers =
          {.shape = {kBatch, kTokens, kHidden},
           .dtype = torch::kFloat,
           .device = torch::kCPU},
      .callbacks = std::move(callbacks)};
}

std::vector<std::shared_ptr<PipelineStage>> stages_of(
    const MlpChain& model,
    int rank,
    int ranks,
    const std::shared_ptr<WeightGradientQueue>& queue = nullptr) {
  std::vector<std::shared_ptr<PipelineStage>> stages;
  for (int s = rank; s < model.blocks(); s += ranks)
    stages.push_back(model.stage(s, queue));
  return stages;
}

double largest_error(const torch::Tensor& a, const torch::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

struct Case {
  ScheduleKind kind;
  int virtual_stages;
  int micro_batches;
};

std::vector<Case> cases_for(int ranks) {
  std::vector<Case> cases;
  for (int m = 1; m <= 8; ++m) {
    cases.push_back({ScheduleKind::kAfab, 1, m});
    cases.push_back({ScheduleKind::kOneFOneB, 1, m});
    cases.push_back({ScheduleKind::kZeroBubble, 1, m});
    if (m >= ranks) {
      cases.push_back({ScheduleKind::kInterleaved1F1B, 2, m});
      cases.push_back({ScheduleKind::kInterleaved1F1B, 3, m});
    }
  }
  return cases;
}

// Two steps in a row, so that a second one meets the first one's stragglers
// and accumulates onto its gradients.
void expect_naive_gradients(const CommunicatorPtr& pp, const Case& one) {
  const Schedule schedule = make_schedule(
      one.kind,
      {.ranks = pp->size(),
       .virtual_stages = one.virtual_stages,
       .micro_batches = one.micro_batches});
  const MlpChain model(schedule.stages());
  const MlpChain naive(schedule.stages());
  const bool split = one.kind == ScheduleKind::kZeroBubble;
  PipelineExecutor executor(
      schedule,
      pp,
      stages_of(
          model,
          pp->rank(),
          pp->size(),
          split ? std::make_shared<WeightGradientQueue>() : nullptr),
      options());
  const std::string name = fmt::format(
      "{} on rank {} of {}, {} micro-batches",
      schedule.name,
      pp->rank(),
      pp->size(),
      one.micro_batches);
  for (int step = 0; step < 2; ++step) {
    const torch::Tensor loss = executor.run(kLossGradient);
    const torch::Tensor expected =
        naive.naive_step(one.micro_batches, kLossGradient);
    if (pp->rank() == pp->size() - 1)
      EXPECT_EQ(loss.item<float>(), expected.item<float>()) << name;
    else
      EXPECT_FALSE(loss.defined()) << name;
    for (int s = pp->rank(); s < schedule.stages(); s += pp->size()) {
      const auto mine = model.parameters(s);
      const auto theirs = naive.parameters(s);
      for (size_t i = 0; i < mine.size(); ++i) {
        ASSERT_TRUE(mine[i].grad().defined()) << name;
        if (split)
          EXPECT_LT(largest_error(mine[i].grad(), theirs[i].grad()), 1e-6)
              << name;
        else
          EXPECT_TRUE(torch::equal(mine[i].grad(), theirs[i].grad())) << name;
      }
    }
    EXPECT_EQ(
        executor.peak_live_activations(),
        simulate(schedule, {})
            .peak_live_activations[static_cast<size_t>(pp->rank())])
        << name;
  }
}

TEST(PipelineExecutor, EverySchedulesGradientsAreThoseOfTheNaiveLoop) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    run_ranks(ranks, [&](CommunicatorPtr pp) {
      for (const Case& one : cases_for(ranks))
        expect_naive_gradients(pp, one);
    });
  }
}

TEST(PipelineExecutor, EvaluationGivesTheLossAndKeepsNothing) {
  run_ranks(3, [](CommunicatorPtr pp) {
    for (int virtual_stages : {1, 2}) {
      const Schedule schedule = make_evaluation_schedule(
          {.ranks = 3, .virtual_stages = virtual_stages, .micro_batches = 4});
      const MlpChain model(schedule.stages());
      const auto stages = stages_of(model, pp->rank(), 3);
      PipelineExecutor executor(schedule, pp, stages, options());
      const torch::Tensor loss = executor.run();
      if (pp->rank() == 2) {
        EXPECT_EQ(
            loss.item<float>(),
            MlpChain(schedule.stages()).naive_step(4, 1).item<float>());
      }
      for (const auto& stage : stages) {
        EXPECT_EQ(stage->live(), 0);
        for (const torch::Tensor& parameter : model.parameters(stage->stage()))
          EXPECT_FALSE(parameter.grad().defined());
      }
    }
  });
}

TEST(PipelineExecutor, ReductionStartsBeforeTheLastBackwardOfAStage) {
  run_ranks(2, [](CommunicatorPtr pp) {
    const Schedule schedule = make_schedule(
        ScheduleKind::kInterleaved1F1B,
        {.ranks = 2, .virtual_stages = 2, .micro_batches = 4});
    const MlpChain model(schedule.stages());
    std::vector<int> backwards_left(4, 4);
    std::vector<int> reduced;
    ExecutorCallbacks callbacks;
    callbacks.observe = [&](const Action& action, int64_t, int64_t) {
      if (action.kind == ActionKind::kBackward)
        --backwards_left[static_cast<size_t>(action.stage)];
    };
    callbacks.reduce_gradients = [&](int stage, GradientState state) {
      EXPECT_EQ(state, GradientState::kLastBackwardBegins);
      EXPECT_EQ(backwards_left[static_cast<size_t>(stage)], 1);
      reduced.push_back(stage);
    };
    PipelineExecutor executor(
        schedule, pp, stages_of(model, pp->rank(), 2), options(callbacks));
    executor.run();
    // The later stage's backward ends first.
    EXPECT_THAT(reduced, ElementsAre(pp->rank() + 2, pp->rank()));
  });
}

TEST(PipelineExecutor, ReductionOfSplitBackwardsFindsCompleteGradients) {
  run_ranks(2, [](CommunicatorPtr pp) {
    const Schedule schedule = make_schedule(
        ScheduleKind::kZeroBubble,
        {.ranks = 2, .virtual_stages = 1, .micro_batches = 3});
    const MlpChain model(2);
    const MlpChain naive(2);
    naive.naive_step(3, 1);
    std::vector<std::pair<int, GradientState>> calls;
    ExecutorCallbacks callbacks;
    callbacks.reduce_gradients = [&](int stage, GradientState state) {
      calls.emplace_back(stage, state);
      const auto mine = model.parameters(stage);
      const auto theirs = naive.parameters(stage);
      for (size_t i = 0; i < mine.size(); ++i)
        EXPECT_LT(largest_error(mine[i].grad(), theirs[i].grad()), 1e-6);
    };
    PipelineExecutor executor(
        schedule,
        pp,
        stages_of(
            model, pp->rank(), 2, std::make_shared<WeightGradientQueue>()),
        options(callbacks));
    executor.run();
    EXPECT_THAT(calls, ElementsAre(Pair(pp->rank(), GradientState::kComplete)));
  });
}

TEST(PipelineExecutor, SendsDoNotWaitForTheStageThatReceives) {
  // Stage 1 does not finish its first forward before stage 0 has finished all
  // of its own: a blocking send, or a barrier per step, would never get there.
  std::promise<void> all_forwards_done;
  const auto done = all_forwards_done.get_future().share();
  run_ranks(2, [&](CommunicatorPtr pp) {
    const Schedule schedule = make_schedule(
        ScheduleKind::kAfab,
        {.ranks = 2, .virtual_stages = 1, .micro_batches = 4});
    const MlpChain model(2);
    const auto inner = model.stage(pp->rank());
    const auto forward = [&](int micro_batch, const torch::Tensor& input) {
      if (pp->rank() == 1 && micro_batch == 0)
        done.wait();
      torch::Tensor hidden = model.block(
          pp->rank(), pp->rank() == 0 ? model.embed(micro_batch) : input);
      if (pp->rank() == 0 && micro_batch == 3)
        all_forwards_done.set_value();
      return pp->rank() == 0 ? hidden : model.loss(micro_batch, hidden);
    };
    PipelineExecutor executor(
        schedule,
        pp,
        {std::make_shared<PipelineStage>(pp->rank(), 2, forward)},
        options());
    executor.run();
  });
}

TEST(PipelineExecutor, SaysWhichTensorALostPeerOwes) {
  run_ranks(
      2,
      [](CommunicatorPtr pp) {
        if (pp->rank() == 1)
          return;  // never takes part
        const Schedule schedule = make_schedule(
            ScheduleKind::kOneFOneB,
            {.ranks = 2, .virtual_stages = 1, .micro_batches = 2});
        const MlpChain model(2);
        PipelineExecutor executor(
            schedule, pp, stages_of(model, 0, 2), options());
        EXPECT_THAT(
            [&] { executor.run(); },
            ThrowsMessage<CommError>(AllOf(
                HasSubstr("stage 0 could not"),
                HasSubstr("of micro-batch"),
                HasSubstr("stage 1 (rank 1 of group"))));
      },
      {.check_collectives = true, .max_records = 0});
}

TEST(PipelineExecutor, RefusesAScheduleThatDoesNotFit) {
  run_ranks(2, [](CommunicatorPtr pp) {
    const MlpChain model(2);
    const auto complaint = [&](const Schedule& schedule) {
      return message_of<UsageError>([&] {
        PipelineExecutor executor(
            schedule, pp, stages_of(model, pp->rank(), 2), options());
      });
    };
    EXPECT_THAT(
        complaint(make_schedule(
            ScheduleKind::kAfab,
            {.ranks = 3, .virtual_stages = 1, .micro_batches = 2})),
        HasSubstr("a schedule of 3 ranks, but group"));
    EXPECT_THAT(
        complaint(make_schedule(
            ScheduleKind::kInterleaved1F1B,
            {.ranks = 2, .virtual_stages = 2, .micro_batches = 2})),
        HasSubstr(
            pp->rank() == 0 ? "given the stages [0], but interleaved_1f1b puts "
                              "[0, 2] there"
                            : "given the stages [1]"));
    Schedule broken = make_schedule(
        ScheduleKind::kAfab,
        {.ranks = 2, .virtual_stages = 1, .micro_batches = 2});
    broken.per_rank[0].pop_back();
    EXPECT_THAT(complaint(broken), HasSubstr("afab: micro-batch 1 on stage 0"));
  });
}

TEST(PipelineExecutor, RefusesAnActivationOfAnotherShape) {
  run_ranks(1, [](CommunicatorPtr pp) {
    // Two stages on one rank hand over directly and ask for no shape; a send
    // does.
    const Schedule shape{.name = "", .ranks = 2, .per_rank = {}};
    StageTransfers transfers(pp, shape, options().transfers);
    EXPECT_THAT(
        [&] {
          transfers.post_send(
              {ActionKind::kSendActivation, 0, 0},
              torch::zeros({kBatch, 1, 2}));
        },
        ThrowsMessage<UsageError>(HasSubstr(
            "send_activation of micro-batch 0 on stage 0: the tensor "
            "is [2, 1, 2] Float, but transfers are [2, 3, 8] Float")));
  });
}

}  // namespace
}  // namespace brigade

// Gradients that are computed twice: equal in every layout, and a bit that
// flips in between is found and named.
#include "brigade/train/gradient_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <set>

#include "brigade/base/error.h"
#include "brigade/ops/libtorch_versions.h"
#include "brigade/run/run_options.h"
#include "brigade/train/train_step.h"
#include "tests/support/program.h"
#include "tests/support/ranks_as_threads.h"
#include "tests/support/train_as_threads.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Arguments;
using ::testing::HasSubstr;
using ::testing::Not;

struct CheckedLayout {
  std::string name;
  int ranks = 2;
  Arguments overrides;
};

void PrintTo(const CheckedLayout& each, std::ostream* out) {
  *out << each.name;
}

class CheckedRun : public ::testing::Test {
 protected:
  CheckedRun() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(20000)));
    config["training"]["total_train_steps"] = 5;
    config["training"]["gradient_accumulation_steps"] = 2;
    config["training"]["grad_clip"] = 0.5;
    config["training"]["learning_rate"] = 1e-3;
    config["distributed"]["bucket_cap_mb"] = 0.04;
    testing::write_file(folder_ / "run.json", config.dump());
  }
  fs::path run(const std::string& name) const { return folder_ / name; }

  testing::RunsFolder folder_;
};

class GradientCheck : public CheckedRun,
                      public ::testing::WithParamInterface<CheckedLayout> {};

TEST_P(GradientCheck, LeavesLossesAndWeightsAsTheyAre) {
  for (const std::string name : {"plain", "checked"}) {
    Arguments overrides = GetParam().overrides;
    overrides.push_back("logging.run_dir=" + run(name).string());
    if (name == "checked")
      overrides.emplace_back("training.check_gradients_every=2");
    testing::train_as_threads(
        folder_ / "run.json", GetParam().ranks, overrides);
  }
  EXPECT_EQ(
      testing::losses_of(run("checked")), testing::losses_of(run("plain")));
  size_t compared = 0;
  for (const auto& entry :
       fs::directory_iterator(run("plain") / "checkpoints" / "5")) {
    if (entry.path().extension() != ".safetensors")
      continue;
    ++compared;
    EXPECT_EQ(
        testing::tensor_bytes(entry.path()),
        testing::tensor_bytes(
            run("checked") / "checkpoints" / "5" / entry.path().filename()))
        << entry.path();
  }
  EXPECT_GE(compared, 2U);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    GradientCheck,
    ::testing::Values(
        CheckedLayout{"one", 1, {"distributed.dp_size=1"}},
        CheckedLayout{"dp3", 3, {"distributed.dp_size=3"}},
        CheckedLayout{
            "dp3_observed",
            3,
            {"distributed.dp_size=3", "distributed.bucket_order=observed"}},
        CheckedLayout{
            "dp2_bf16",
            2,
            {"distributed.dp_size=2",
             "model.dtype=bfloat16",
             "distributed.grad_wire=bf16"}},
        CheckedLayout{
            "dp2_int8",
            2,
            {"distributed.dp_size=2", "distributed.grad_wire=int8"}},
        CheckedLayout{
            "zero1",
            2,
            {"distributed.dp_size=2", "distributed.zero_stage=1"}},
        CheckedLayout{
            "zero2",
            2,
            {"distributed.dp_size=2", "distributed.zero_stage=2"}},
        CheckedLayout{
            "zero3",
            2,
            {"distributed.dp_size=2", "distributed.zero_stage=3"}},
        CheckedLayout{
            "tp2",
            2,
            {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
        CheckedLayout{
            "cp2",
            2,
            {"distributed.cp_size=2", "training.recompute=full"}},
        CheckedLayout{"pp2", 2, {"distributed.pp_size=2"}},
        CheckedLayout{
            "pp2_zero_bubble",
            2,
            {"distributed.pp_size=2", "distributed.pp_engine=zero_bubble"}},
        CheckedLayout{
            "dp2_pp2_zero2",
            4,
            {"distributed.dp_size=2",
             "distributed.pp_size=2",
             "distributed.zero_stage=2"}},
        CheckedLayout{
            "local",
            2,
            {"distributed.dp_size=2", "distributed.local_steps=2"}}),
    [](const auto& each) { return each.param.name; });

constexpr const char* kFlipped = "model.layers.1.mlp.down_proj.weight";

// Called in backward when a weight's gradient is in its bucket and before it
// counts as ready: flips a bit of it at the given calls, another one at each.
class Flip : public torch::autograd::FunctionPreHook {
 public:
  Flip(torch::Tensor weight, std::set<int> calls)
      : weight_(std::move(weight)), calls_(std::move(calls)) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    if (calls_.count(++call_) > 0) {
      auto* bits = static_cast<int32_t*>(weight_.grad().data_ptr());
      bits[5] ^= 1 << call_;
    }
    return gradients;
  }

 private:
  torch::Tensor weight_;
  std::set<int> calls_;
  int call_ = 0;
};

// What each of two ranks throws in the second step, where rank 1's gradient
// flips at these calls: 1 is the first step's, 2 the rehearsal's, 3 the one
// that would be used, 4 the third computation's.
class FlippedBit : public CheckedRun {
 protected:
  std::vector<std::string> errors_where(
      const std::set<int>& calls,
      int zero_stage = 0) {
    LoadOptions options{
        .path = folder_ / "run.json",
        .overrides =
            {{"distributed.dp_size=2"},
             {"training.gradient_accumulation_steps=1"},
             {"training.check_gradients_every=1"},
             {"distributed.zero_stage=" + std::to_string(zero_stage)}},
        .world_size = 2,
        .find_model = {}};
    const TrainConfig config = load_train_config(options).config;
    std::vector<std::string> errors(2);
    testing::run_ranks_with_store(2, [&](int rank, const StorePtr& store) {
      ProcessMesh mesh({.dp = 2}, rank, store);
      mesh.divide_replicas(1);
      const TrainingData data =
          open_training_data(training_data_options(config));
      TrainStep step(config, mesh, data);
      torch::Tensor weight =
          step.stages().front()->model().named_parameters()[kFlipped];
      const ops::NodePtr accumulator =
          torch::autograd::impl::grad_accumulator(weight);
      if (rank == 1)
        accumulator->add_pre_hook(std::make_unique<Flip>(weight, calls));
      step.run(1);
      step.stages().front()->sync().weights().need_all();
      const torch::Tensor before = weight.detach().clone();
      try {
        step.run(2);
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = error.what();
        EXPECT_TRUE(torch::equal(weight.detach(), before));
      }
    });
    return errors;
  }
};

TEST_F(FlippedBit, IsNamedByRankAndParameterAndNotUsed) {
  for (const int zero_stage : {0, 1, 2}) {
    for (const std::string& error : errors_where({3}, zero_stage))
      EXPECT_THAT(
          error,
          AllOf(
              HasSubstr("step 2: computed twice"),
              HasSubstr(std::string("'") + kFlipped + "' on rank 1"),
              HasSubstr("gave what the first one did"),
              HasSubstr("Nothing was updated"),
              Not(HasSubstr("on rank 0"))))
          << zero_stage;
  }
}

TEST_F(FlippedBit, RehearsalAndStepAreToldApart) {
  for (const std::string& error : errors_where({2}))
    EXPECT_THAT(error, HasSubstr("gave what the second one did"));
}

TEST_F(FlippedBit, IsReportedAsRepeated) {
  for (const std::string& error : errors_where({3, 4}))
    EXPECT_THAT(error, HasSubstr("it happens again and again"));
}

TEST_F(FlippedBit, IsNotSeenInAStepThatIsNotChecked) {
  for (const std::string& error : errors_where({1}))
    EXPECT_EQ(error, "");
}

TEST(GradientNotes, TheFirstParameterThatDiffersIsFound) {
  const GradientNotes first = {{"a", 1}, {"b", 2}, {"a", 3}};
  EXPECT_EQ(find_unlike_gradient(first, first), "");
  EXPECT_EQ(find_unlike_gradient(first, {{"a", 1}, {"b", 2}, {"a", 4}}), "a");
  EXPECT_EQ(find_unlike_gradient(first, {{"a", 1}, {"b", 0}, {"a", 4}}), "b");
}

}  // namespace
}  // namespace brigade

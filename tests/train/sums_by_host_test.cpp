// Steps whose gradients are summed by host, against sums over the whole group.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "brigade/run/run_options.h"
#include "brigade/train/train_step.h"
#include "tests/support/program.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::Arguments;
using testing::largest_relative_difference;

class StepsByHost : public ::testing::Test {
 protected:
  StepsByHost() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(24000)));
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 2},
        {"gradient_accumulation_steps", 2},
        {"total_train_steps", 4},
        {"learning_rate", 5e-3}};
    testing::write_file(folder_ / "run.json", config.dump());
  }

  // The losses of four ranks, two on each host.
  std::vector<double> losses_with(
      HierarchyChoice choice,
      const Arguments& overrides) const {
    LoadOptions options{
        .path = folder_ / "run.json",
        .overrides = {},
        .world_size = 4,
        .find_model = {}};
    for (const std::string& text : overrides)
      options.overrides.push_back({text});
    const TrainConfig config = load_train_config(options).config;
    std::vector<double> losses;
    testing::run_ranks_with_store(4, [&](int rank, const StorePtr& store) {
      BackendOptions backend;
      backend.hosts = {"a", "b", "a", "b"};
      backend.hierarchy = choice;
      ProcessMesh mesh({.dp = 4}, rank, store, {.max_records = 10000}, backend);
      mesh.divide_replicas(1);  // as the trainer does
      const TrainingData data =
          open_training_data(training_data_options(config));
      TrainStep step(config, mesh, data);
      for (int i = 1; i <= 4; ++i) {
        const double loss = step.run(i).loss;
        if (rank == 0)
          losses.push_back(loss);
      }
      size_t between_hosts = 0;
      for (const CommunicatorPtr& group : mesh.all()) {
        if (group->name() == "dp_cp across hosts")
          between_hosts = group->records().size();
      }
      EXPECT_EQ(between_hosts > 0, choice == HierarchyChoice::kAuto);
    });
    return losses;
  }

  testing::RunsFolder folder_;
};

TEST_F(StepsByHost, HaveTheLossesOfSumsOverTheWholeGroup) {
  for (const auto& [overrides, tolerance] : {
           std::pair(Arguments{}, 1e-5),
           std::pair(Arguments{"distributed.grad_wire=bf16"}, 5e-3),
           std::pair(Arguments{"distributed.zero_stage=1"}, 1e-5),
           std::pair(Arguments{"distributed.zero_stage=2"}, 1e-5),
           std::pair(Arguments{"distributed.zero_stage=3"}, 1e-5),
       }) {
    SCOPED_TRACE(overrides.empty() ? "fp32" : overrides.front());
    const auto whole = losses_with(HierarchyChoice::kOff, overrides);
    ASSERT_EQ(whole.size(), 4U);
    EXPECT_LT(whole.back(), whole.front());
    EXPECT_LE(
        largest_relative_difference(
            losses_with(HierarchyChoice::kAuto, overrides), whole),
        tolerance);
  }
}

}  // namespace
}  // namespace brigade

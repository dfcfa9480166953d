// Layouts over MPI: the program under mpirun trains to the losses of one rank.
#include <gtest/gtest.h>
#include <unistd.h>

#include "brigade/comm/mpi/mpi_communicator.h"
#include "tests/support/program.h"

namespace brigade {
namespace {

using testing::Arguments;

// The options of an mpirun of Open MPI for more ranks than cores.
Arguments mpirun(int ranks, const Arguments& command) {
  Arguments all{"--oversubscribe", "-n", std::to_string(ranks)};
  if (::getuid() == 0)
    all.insert(all.begin(), "--allow-run-as-root");
  all.push_back(testing::program_path());
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

struct MpiLayout {
  const char* name;
  Arguments layout;
  Arguments model = {};
};

class LayoutOverMpi : public ::testing::TestWithParam<MpiLayout> {
 protected:
  void SetUp() override {
    if (!has_mpi())
      GTEST_SKIP() << "this build has no MPI: install libopenmpi-dev";
    if (testing::StartedProgram("mpirun", {"--version"}).wait().exit_code != 0)
      GTEST_SKIP() << "mpirun is missing: install openmpi-bin";
  }
};

TEST_P(LayoutOverMpi, TrainsAsOneRankDoes) {
  const testing::RunsFolder folder;
  auto config = testing::tiny_run(
      testing::prepare_bytes(folder / "text", testing::made_up_text(20000)));
  // The options of one rank; the layout sets its own micro-batches.
  Arguments train{
      "train",
      "--config",
      (folder / "config.json").string(),
      "training.total_train_steps=5"};
  const Arguments& model = GetParam().model;
  train.insert(train.end(), model.begin(), model.end());
  testing::write_file(folder / "config.json", config.dump());
  const auto with = [&](const Arguments& more, const std::string& run) {
    Arguments all = train;
    all.insert(all.end(), more.begin(), more.end());
    all.push_back("logging.run_dir=" + (folder / run).string());
    return all;
  };
  const auto alone = testing::run_program(with(
      {"training.micro_batch_size=2", "training.gradient_accumulation_steps=4"},
      "alone"));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;

  Arguments layout = GetParam().layout;
  layout.push_back("distributed.backend=mpi");
  const auto over_mpi =
      testing::StartedProgram("mpirun", mpirun(4, with(layout, "mpi"))).wait();
  ASSERT_EQ(over_mpi.exit_code, 0) << over_mpi.err;
  const auto losses = testing::losses_of(folder / "mpi");
  EXPECT_EQ(losses.size(), size_t{5});
  EXPECT_LE(
      testing::largest_relative_difference(
          losses, testing::losses_of(folder / "alone")),
      2e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Of4Ranks,
    LayoutOverMpi,
    ::testing::Values(
        MpiLayout{
            "dp4",
            {"training.micro_batch_size=1",
             "training.gradient_accumulation_steps=2"}},
        MpiLayout{
            "tp2_sp",
            {"distributed.tp_size=2",
             "distributed.sequence_parallel=true",
             "training.micro_batch_size=1",
             "training.gradient_accumulation_steps=4"}},
        MpiLayout{
            "pp2",
            {"distributed.pp_size=2",
             "training.micro_batch_size=1",
             "training.gradient_accumulation_steps=4"}},
        MpiLayout{
            "cp2_zero2",
            {"distributed.cp_size=2",
             "distributed.zero_stage=2",
             "training.micro_batch_size=1",
             "training.gradient_accumulation_steps=4"}},
        MpiLayout{
            "tp2_pp2",
            {"distributed.tp_size=2",
             "distributed.pp_size=2",
             "training.micro_batch_size=2",
             "training.gradient_accumulation_steps=4"}},
        MpiLayout{
            "ep2_zero1",
            {"distributed.ep_size=2",
             "distributed.zero_stage=1",
             "training.micro_batch_size=1",
             "training.gradient_accumulation_steps=2"},
            {R"(model.config.architectures=["MixtralForCausalLM"])",
             "model.config.model_type=mixtral",
             "model.config.num_local_experts=4",
             "model.config.num_experts_per_tok=2",
             "training.router_aux_loss=0.05"}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(OverMpi, RanksOfAnotherLauncherAreAConfigErrorThatSaysHowToStart) {
  const testing::RunsFolder folder;
  const auto config = testing::tiny_run(
      testing::prepare_bytes(folder / "text", testing::made_up_text(20000)));
  testing::write_file(folder / "config.json", config.dump());
  for (const Arguments& start : {Arguments{}, Arguments{"--nproc", "2"}}) {
    Arguments all{
        "train",
        "--config",
        (folder / "config.json").string(),
        "distributed.backend=mpi",
        "logging.run_dir=" + (folder / "run").string()};
    all.insert(all.end(), start.begin(), start.end());
    const auto result = testing::run_program(all);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_NE(
        result.err.find(
            has_mpi() ? "run mpirun -n 4 brigade train"
                      : "is not in this build"),
        std::string::npos)
        << result.err;
  }
}

}  // namespace
}  // namespace brigade

// Low-communication training: groups of replicas that train apart.
#include "brigade/train/local_training.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>
#include <map>

#include "brigade/checkpoint/checkpoint.h"
#include "brigade/data/loss_mask.h"
#include "brigade/run/run_options.h"
#include "brigade/train/run_checkpoint.h"
#include "brigade/train/train_step.h"
#include "tests/support/program.h"
#include "tests/support/ranks_as_threads.h"
#include "tests/support/train_as_threads.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using testing::Arguments;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::largest_relative_difference;
using testing::losses_of;

void expect_same_tensors(const fs::path& actual, const fs::path& expected) {
  const Checkpoint a(actual);
  const Checkpoint b(expected);
  ASSERT_EQ(a.names(), b.names());
  for (const std::string& name : b.names())
    EXPECT_TRUE(torch::equal(a.read_whole(name), b.read_whole(name))) << name;
}

class LocalSteps : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::RunsFolder;
    auto config = testing::tiny_run(testing::prepare_bytes(
        *folder_ / "tokens", testing::made_up_text(24000)));
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 2},
        {"gradient_accumulation_steps", 2},
        {"total_train_steps", 8},
        {"learning_rate", 5e-3}};
    testing::write_file(*folder_ / "run.json", config.dump());
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static fs::path run(const std::string& name) { return *folder_ / name; }
  static fs::path checkpoint(const std::string& name, int step) {
    return run(name) / "checkpoints" / std::to_string(step);
  }
  static void train(
      const std::string& name,
      int ranks,
      const Arguments& overrides,
      const Arguments& more = {}) {
    fs::remove_all(run(name));
    Arguments all = overrides;
    all.push_back("logging.run_dir=" + run(name).string());
    all.insert(all.end(), more.begin(), more.end());
    testing::train_as_threads(*folder_ / "run.json", ranks, all);
  }
  static torch::Tensor
  read(const std::string& name, int step, const std::string& tensor) {
    return Checkpoint(checkpoint(name, step)).read_whole(tensor);
  }

  // The run `name`, of eight steps, and those that continue it from each of
  // `steps` are one and the same bit for bit.
  static void expect_continues(
      const std::string& name,
      int ranks,
      const Arguments& overrides,
      const std::vector<int>& steps) {
    const auto losses = losses_of(run(name));
    ASSERT_EQ(losses.size(), 8U);
    for (const int step : steps) {
      SCOPED_TRACE(step);
      train(
          "continued",
          ranks,
          overrides,
          {"checkpoint.load_path=" + checkpoint(name, step).string()});
      EXPECT_EQ(
          losses_of(run("continued")),
          std::vector<double>(losses.begin() + step, losses.end()));
      expect_same_tensors(checkpoint("continued", 8), checkpoint(name, 8));
    }
  }

  static testing::RunsFolder* folder_;
};

testing::RunsFolder* LocalSteps::folder_ = nullptr;

// `overrides` for a model whose layers have four experts each.
Arguments with_experts(Arguments overrides) {
  overrides.insert(
      overrides.end(),
      {R"(model.config.architectures=["MixtralForCausalLM"])",
       "model.config.model_type=mixtral",
       "model.config.num_local_experts=4",
       "model.config.num_experts_per_tok=2"});
  return overrides;
}

const std::string kQuery = "model.layers.0.self_attn.q_proj.weight";
const std::string kExpert =
    "model.layers.1.block_sparse_moe.experts.3.w2.weight";
const std::string kEmbedding = "model.embed_tokens.weight";

struct GroupLayout {
  std::string name;
  int ranks;
  Arguments overrides;
  Arguments groups;  // of low-communication training alone
};

// Where AdamW's step is linear in the gradient (epsilon far above the second
// moment's root, as SGD with momentum), the mean of the groups' weights after
// one step is the weights of data parallel.
TEST_F(LocalSteps, AreDataParallelWhereEachStepIsAveraged) {
  const Arguments linear = {
      "training.adam_eps=1e6",
      "training.learning_rate=5e5",
      "training.weight_decay=0",
      "checkpoint.save_frequency=8"};
  const Arguments plain = {
      "distributed.local_steps=1",
      "distributed.outer_learning_rate=1",
      "distributed.outer_momentum=0"};
  const std::string pp = "distributed.pp_size=2";
  const std::string tp = "distributed.tp_size=2";
  const std::string cp = "distributed.cp_size=2";
  for (const GroupLayout& layout : {
           GroupLayout{"dp4", 4, {}, {}},
           GroupLayout{"dp4_in_2", 4, {}, {"distributed.local_groups=2"}},
           GroupLayout{"dp3_pp2", 6, {pp}, {}},
           GroupLayout{"dp2_tp2", 4, {tp}, {}},
           GroupLayout{"dp2_cp2", 4, {cp}, {}},
           GroupLayout{"dp4_tp2_in_2", 8, {tp}, {"distributed.local_groups=2"}},
       }) {
    SCOPED_TRACE(layout.name);
    Arguments overrides = linear;
    overrides.insert(
        overrides.end(), layout.overrides.begin(), layout.overrides.end());
    train("parallel", layout.ranks, overrides);
    Arguments local = plain;
    local.insert(local.end(), layout.groups.begin(), layout.groups.end());
    train("local", layout.ranks, overrides, local);
    const auto expected = losses_of(run("parallel"));
    ASSERT_EQ(expected.size(), 8U);
    EXPECT_LT(expected.back(), expected.front() - 0.1);
    EXPECT_LE(
        largest_relative_difference(losses_of(run("local")), expected), 1e-6);
    for (const std::string& name : {kQuery, kEmbedding}) {
      const auto weight = read("parallel", 8, name);
      EXPECT_LE(
          (read("local", 8, name) - weight).norm().item<double>(),
          1e-6 * weight.norm().item<double>());
    }
  }
}

TEST_F(LocalSteps, GroupsDifferUntilTheyExchangeAndThenAreTheCommonWeights) {
  train(
      "apart", 2, {"distributed.local_steps=4", "checkpoint.save_frequency=1"});
  for (const std::string& name : {kQuery, kEmbedding}) {
    for (const int step : {1, 3, 5}) {
      EXPECT_FALSE(torch::equal(
          read("apart", step, "outer.0.weight." + name),
          read("apart", step, "outer.1.weight." + name)));
      // What is stored as the model is the last common one.
      EXPECT_TRUE(torch::equal(
          read("apart", step, name), read("apart", step / 4 * 4 + 1, name)));
    }
    for (const int step : {4, 8}) {
      for (const int group : {0, 1})
        EXPECT_TRUE(torch::equal(
            read("apart", step, fmt::format("outer.{}.weight.{}", group, name)),
            read("apart", step, name)));
    }
  }
}

// The common weights of two rounds from what the groups had before each
// exchange, by torch's own optimizer.
TEST_F(LocalSteps, TheExchangeIsTorchsNesterovSgdOnTheMeanChange) {
  const Arguments save = {"checkpoint.save_frequency=1"};
  // One more step than a round, so that what the groups have before the
  // exchange is there to be read.
  train(
      "before",
      2,
      save,
      {"distributed.local_steps=4", "training.max_tokens=384"});
  const torch::Tensor start = read("before", 1, kQuery);
  train(
      "before",
      2,
      save,
      {"distributed.local_steps=100", "training.max_tokens=1536"});
  train("after", 2, save, {"distributed.local_steps=4"});
  auto common = start.clone().requires_grad_();
  torch::optim::SGD oracle(
      {common}, torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(true));
  const auto mean_of = [&](const std::string& run, int step) {
    return (read(run, step, "outer.0.weight." + kQuery) +
            read(run, step, "outer.1.weight." + kQuery)) /
           2;
  };
  ASSERT_TRUE(torch::equal(
      read("before", 3, "outer.1.weight." + kQuery),
      read("after", 3, "outer.1.weight." + kQuery)));
  common.mutable_grad() = start - mean_of("before", 4);
  oracle.step();
  EXPECT_TRUE(torch::allclose(read("after", 4, kQuery), common, 1e-5, 1e-7));
  EXPECT_FALSE(torch::allclose(start, common, 1e-3, 1e-4));
}

TEST_F(LocalSteps, AlphaKeepsThatShareOfTheGroupsOwnWeights) {
  const Arguments save = {
      "checkpoint.save_frequency=4", "training.max_tokens=1536"};
  train("own", 2, save, {"distributed.local_steps=100"});
  train(
      "shared",
      2,
      save,
      {"distributed.local_steps=4", "distributed.outer_alpha=0.25"});
  for (const int group : {0, 1}) {
    const std::string name = fmt::format("outer.{}.weight.{}", group, kQuery);
    EXPECT_TRUE(torch::allclose(
        read("shared", 4, name),
        0.25 * read("own", 4, name) + 0.75 * read("shared", 4, kQuery),
        1e-5,
        1e-7));
  }
}

TEST_F(LocalSteps, FragmentsAreExchangedAtStepsOfTheirOwnAndLater) {
  train(
      "fragments",
      2,
      {"distributed.local_steps=6",
       "distributed.outer_fragments=2",
       "distributed.outer_delay=1",
       "checkpoint.save_frequency=1"});
  const auto is_common = [&](int step, int layer) {
    const std::string name =
        fmt::format("model.layers.{}.self_attn.q_proj.weight", layer);
    return torch::equal(
        read("fragments", step, "outer.0.weight." + name),
        read("fragments", step, "outer.1.weight." + name));
  };
  // Sent after step 3, merged after 4; and 6 and 7.
  for (int step = 1; step <= 8; ++step) {
    for (const int layer : {0, 2})
      EXPECT_EQ(is_common(step, layer), step == 4) << step;
    for (const int layer : {1, 3})
      EXPECT_EQ(is_common(step, layer), step == 7) << step;
  }
  const Checkpoint under_way(checkpoint("fragments", 3));
  EXPECT_TRUE(under_way.contains("outer.pending." + kQuery));
  EXPECT_FALSE(Checkpoint(checkpoint("fragments", 4))
                   .contains("outer.pending." + kQuery));
}

TEST_F(LocalSteps, AContinuedRunIsTheUndisturbedOneBitForBit) {
  const std::string pp = "distributed.pp_size=2";
  const std::string tp = "distributed.tp_size=2";
  const std::string bf16 = "model.dtype=bfloat16";
  for (const GroupLayout& layout : {
           GroupLayout{"fp32", 2, {}, {}},
           GroupLayout{
               "int4",
               4,
               {bf16, "distributed.local_groups=2"},
               {"distributed.outer_wire=int4"}},
           GroupLayout{"pp2", 4, {pp}, {"distributed.outer_wire=bf16"}},
           GroupLayout{"tp2", 4, {tp, bf16}, {"distributed.outer_wire=int8"}},
       }) {
    SCOPED_TRACE(layout.name);
    Arguments overrides = layout.overrides;
    overrides.insert(
        overrides.end(), layout.groups.begin(), layout.groups.end());
    for (const char* text :
         {"distributed.local_steps=4",
          "distributed.outer_fragments=2",
          "distributed.outer_delay=1",
          "distributed.outer_alpha=0.5",
          "checkpoint.save_frequency=1"})
      overrides.emplace_back(text);
    train("whole", layout.ranks, overrides);
    // Fragment 1 is under way after 4.
    expect_continues("whole", layout.ranks, overrides, {3, 4, 6});
  }
}

// A group without a token that counts does not step, and its Adam counts one
// step less than that of the others from there on.
TEST_F(LocalSteps, AGroupThatSkippedAStepContinuesBitForBit) {
  const std::string dataset = run("tokens").string();
  const std::string masked = run("masked").string();
  for (const char* suffix : {".bin", ".idx", ".json"})
    fs::copy_file(dataset + suffix, masked + suffix);
  LossMaskWriter mask;
  const uint64_t tokens = fs::file_size(dataset + ".bin") / 2;
  // Group 0's windows of step 2: two of each of its two micro-batches.
  for (uint64_t token = 0; token < tokens; ++token) {
    const uint64_t window = token == 0 ? 0 : (token - 1) / 48;
    mask.append(window != 8 && window != 9 && window != 12 && window != 13);
  }
  mask.commit(masked + ".mask");
  const Arguments overrides = {
      "dataset.name=" + masked,
      "dataset.shuffle=false",
      "distributed.local_steps=4",
      "checkpoint.save_frequency=1"};
  train("skipping", 2, overrides);
  EXPECT_TRUE(read_manifest(checkpoint("skipping", 3)).optimizer.is_array())
      << "no group skipped a step";
  expect_continues("skipping", 2, overrides, {3, 4});
}

// Until then all groups have the weights and losses of data parallel.
TEST_F(LocalSteps, WarmupIsDataParallelAndTheFirstRoundBeginsAfterIt) {
  const std::string pp = "distributed.pp_size=2";
  const std::string tp = "distributed.tp_size=2";
  for (const GroupLayout& layout : {
           GroupLayout{"dp4", 4, {}, {}},
           GroupLayout{"dp4_in_2", 4, {}, {"distributed.local_groups=2"}},
           GroupLayout{"dp2_pp2", 4, {pp}, {}},
           GroupLayout{"dp2_tp2", 4, {tp, "model.dtype=bfloat16"}, {}},
       }) {
    SCOPED_TRACE(layout.name);
    Arguments overrides = layout.overrides;
    overrides.emplace_back("checkpoint.save_frequency=1");
    train("parallel", layout.ranks, overrides);
    Arguments local = {
        "distributed.local_steps=3", "distributed.local_warmup_steps=2"};
    local.insert(local.end(), layout.groups.begin(), layout.groups.end());
    train("warm", layout.ranks, overrides, local);
    const auto expected = losses_of(run("parallel"));
    const auto losses = losses_of(run("warm"));
    ASSERT_EQ(losses.size(), 8U);
    // The third step's loss is before its update.
    EXPECT_LE(
        largest_relative_difference(
            {losses.begin(), losses.begin() + 3},
            {expected.begin(), expected.begin() + 3}),
        1e-6);
    EXPECT_GT(largest_relative_difference({losses[5]}, {expected[5]}), 1e-6);
    const auto weight_of = [&](int step, int group) {
      return read(
          "warm", step, fmt::format("outer.{}.weight.{}", group, kQuery));
    };
    for (int step = 1; step <= 8; ++step) {
      const bool is_alike = step <= 2 || step == 5 || step == 8;
      EXPECT_EQ(torch::equal(weight_of(step, 0), weight_of(step, 1)), is_alike)
          << step;
    }
    for (const int step : {1, 2}) {
      const auto weight = read("parallel", step, kQuery).to(torch::kFloat);
      const auto warm = read("warm", step, kQuery).to(torch::kFloat);
      EXPECT_LE(
          (warm - weight).norm().item<double>(),
          1e-5 * weight.norm().item<double>());
    }
    // The model of a checkpoint is what the round began with.
    EXPECT_TRUE(torch::equal(read("warm", 4, kQuery), read("warm", 2, kQuery)));
  }
}

TEST_F(LocalSteps, ARunContinuedFromItsWarmupIsTheUndisturbedOneBitForBit) {
  const Arguments overrides = {
      "distributed.local_groups=2",
      "distributed.local_steps=3",
      "distributed.local_warmup_steps=2",
      "distributed.grad_wire=int8",
      "checkpoint.save_frequency=1"};
  train("whole", 4, overrides);
  expect_continues("whole", 4, overrides, {1, 2, 4});
}

// Its steps are those of a run of short rounds that averages.
TEST_F(LocalSteps, AWarmupByIntervalAveragesTheGroupsAtTheEndOfEach) {
  const Arguments common = {
      "distributed.outer_wire=int8", "checkpoint.save_frequency=1"};
  train(
      "short",
      2,
      common,
      {"distributed.local_steps=2",
       "distributed.outer_learning_rate=1",
       "distributed.outer_momentum=0"});
  const Arguments warm = {
      "distributed.local_steps=4",
      "distributed.local_warmup_steps=4",
      "distributed.local_warmup_interval=2"};
  train("warm", 2, common, warm);
  const auto losses = losses_of(run("warm"));
  const auto expected = losses_of(run("short"));
  // The seventh step is the first after an exchange that "warm" leaves out.
  EXPECT_EQ(
      std::vector<double>(losses.begin(), losses.begin() + 6),
      std::vector<double>(expected.begin(), expected.begin() + 6));
  EXPECT_NE(losses[6], expected[6]);
  const std::string momentum = "outer.momentum." + kQuery;
  EXPECT_EQ(read("warm", 4, momentum).abs().max().item<float>(), 0);
  EXPECT_GT(read("warm", 8, momentum).abs().max().item<float>(), 0);
  Arguments continued = common;
  continued.insert(continued.end(), warm.begin(), warm.end());
  expect_continues("warm", 2, continued, {1, 2, 4, 5});
}

// Groups of two ranks, in fragments that are merged later and in part.
TEST_F(LocalSteps, AWarmupByIntervalLeadsIntoStreamingBitForBit) {
  const Arguments overrides = {
      "distributed.local_groups=2",
      "distributed.grad_wire=int8",
      "distributed.local_steps=4",
      "distributed.outer_fragments=2",
      "distributed.outer_delay=1",
      "distributed.outer_alpha=0.5",
      "distributed.outer_wire=int8",
      "distributed.local_warmup_steps=4",
      "distributed.local_warmup_interval=2",
      "checkpoint.save_frequency=1"};
  train("whole", 4, overrides);
  const auto weight_of = [&](int step, int group) {
    return read(
        "whole", step, fmt::format("outer.{}.weight.{}", group, kQuery));
  };
  // Alpha is of the rounds: means are taken over whole.
  EXPECT_FALSE(torch::equal(weight_of(3, 0), weight_of(3, 1)));
  EXPECT_TRUE(torch::equal(weight_of(4, 0), weight_of(4, 1)));
  expect_continues("whole", 4, overrides, {2, 3, 4, 6});
}

TEST_F(LocalSteps, AWireInsideTheGroupsKeepsTheLossesClose) {
  const Arguments overrides = {
      "distributed.local_groups=2",
      "distributed.local_steps=3",
      "distributed.local_warmup_steps=2"};
  train("exact", 4, overrides);
  const auto exact = losses_of(run("exact"));
  for (const auto& [wire, tolerance] :
       {std::pair("bf16", 5e-3),
        std::pair("fp16", 5e-3),
        std::pair("int8", 0.01),
        std::pair("powersgd", 0.1)}) {
    train(
        "rounded",
        4,
        overrides,
        {fmt::format("distributed.grad_wire={}", wire)});
    const auto rounded = losses_of(run("rounded"));
    EXPECT_EQ(rounded.front(), exact.front()) << wire;
    EXPECT_NE(rounded.back(), exact.back()) << wire;
    EXPECT_LE(largest_relative_difference(rounded, exact), tolerance) << wire;
  }
}

// A group that leaves, or joins: the run goes on with the checkpoint.
TEST_F(LocalSteps, OtherRunsContinueFromTheCommonWeights) {
  train("source", 2, {"distributed.local_steps=4", "training.max_tokens=1536"});
  const std::string load =
      "checkpoint.load_path=" + checkpoint("source", 4).string();
  // Data parallel, and as many groups as there are now.
  train("as_parallel", 2, {load, "checkpoint.save_frequency=1"});
  train("one_group", 1, {load, "distributed.local_steps=4"});
  EXPECT_EQ(losses_of(run("as_parallel")).size(), 4U);
  EXPECT_EQ(losses_of(run("one_group")).size(), 4U);
}

TEST_F(LocalSteps, FewerOrMoreGroupsGoOnWithWhatFourHadInCommon) {
  train("four", 4, {"distributed.local_steps=4", "training.max_tokens=3072"});
  ASSERT_GT(
      read("four", 4, "outer.momentum." + kQuery).abs().max().item<float>(), 0);
  const std::string load =
      "checkpoint.load_path=" + checkpoint("four", 4).string();
  for (const int groups : {3, 5}) {
    SCOPED_TRACE(groups);
    train(
        "other",
        groups,
        {load, "distributed.local_steps=4", "checkpoint.save_frequency=1"});
    const auto losses = losses_of(run("other"));
    ASSERT_EQ(losses.size(), 4U);
    EXPECT_LT(losses.back(), losses_of(run("four")).front());
    EXPECT_THAT(
        testing::read_file(run("other") / "events.jsonl"),
        HasSubstr(fmt::format("does not have {} groups", groups)));
    // The first exchange is at step 8.
    for (const std::string& name : {kQuery, "outer.momentum." + kQuery})
      EXPECT_TRUE(torch::equal(read("other", 7, name), read("four", 4, name)));
    EXPECT_FALSE(
        torch::equal(read("other", 8, kQuery), read("four", 4, kQuery)));
    const Checkpoint last(checkpoint("other", 8));
    EXPECT_TRUE(
        last.contains(fmt::format("outer.{}.weight.{}", groups - 1, kQuery)));
    EXPECT_FALSE(
        last.contains(fmt::format("outer.{}.weight.{}", groups, kQuery)));
  }
}

TEST_F(LocalSteps, OtherGroupsBeginWithTheMeanOfTheMoments) {
  train("two", 2, {"distributed.local_steps=4", "training.max_tokens=1536"});
  const fs::path from = checkpoint("two", 4);
  for (const Arguments& overrides :
       {Arguments{"distributed.local_steps=4"}, Arguments{}}) {
    LoadOptions options{
        .path = *folder_ / "run.json",
        .overrides = {},
        .world_size = 3,
        .find_model = {}};
    for (const std::string& text : overrides)
      options.overrides.push_back({text});
    const TrainConfig config = load_train_config(options).config;
    testing::run_ranks_with_store(3, [&](int rank, const StorePtr& store) {
      ProcessMesh mesh({.dp = 3}, rank, store);
      mesh.divide_replicas(config.distributed.replica_groups());
      const TrainingData data =
          open_training_data(training_data_options(config));
      TrainStep step(config, mesh, data);
      const LoadedRun loaded = load_run(from, step);
      EXPECT_EQ(loaded.has_groups, overrides.empty());
      EXPECT_EQ(loaded.unmerged_steps, 0);  // a round has ended
      const Checkpoint source(from);
      step.stages().front()->params().visit([&](const Param& param) {
        for (const State& moment : param.states) {
          const std::string kind = moment.name + ".";
          const auto mine = source.read_whole(kind + param.name);
          const auto others = source.read_whole("outer.1." + kind + param.name);
          EXPECT_FALSE(torch::equal(mine, others));
          EXPECT_TRUE(
              torch::allclose(moment.tensor, (mine + others) / 2, 1e-5, 0))
              << kind << param.name;
        }
      });
    });
  }
}

// Groups of four ranks on two hosts, and a warm-up over all eight.
TEST_F(LocalSteps, SumsByHostGiveTheLossesOfSumsOverTheWholeGroup) {
  LoadOptions options{
      .path = *folder_ / "run.json",
      .overrides =
          {{"distributed.local_steps=2"},
           {"distributed.local_groups=2"},
           {"distributed.local_warmup_steps=2"}},
      .world_size = 8,
      .find_model = {}};
  const TrainConfig config = load_train_config(options).config;
  const std::vector<std::string> hosts = {
      "a", "a", "b", "b", "a", "a", "b", "b"};
  const auto losses_with = [&](HierarchyChoice choice) {
    std::vector<double> losses;
    testing::run_ranks_with_store(8, [&](int rank, const StorePtr& store) {
      BackendOptions backend;
      backend.hosts = hosts;
      backend.hierarchy = choice;
      ProcessMesh mesh({.dp = 8}, rank, store, {.max_records = 10000}, backend);
      mesh.divide_replicas(2);
      const TrainingData data =
          open_training_data(training_data_options(config));
      TrainStep step(config, mesh, data);
      for (int i = 1; i <= 6; ++i) {
        const double loss = step.run(i).loss;
        if (rank == 0)
          losses.push_back(loss);
      }
      std::map<std::string, size_t> sums;
      for (const CommunicatorPtr& group : mesh.all())
        sums[group->name()] = group->records().size();
      for (const char* name : {"dp_cp across hosts", "replicas across hosts"})
        EXPECT_EQ(sums[name] > 0, choice == HierarchyChoice::kAuto) << name;
    });
    return losses;
  };
  const auto whole = losses_with(HierarchyChoice::kOff);
  const auto by_host = losses_with(HierarchyChoice::kAuto);
  ASSERT_EQ(whole.size(), 6U);
  EXPECT_LT(whole.back(), whole.front());
  EXPECT_LE(largest_relative_difference(by_host, whole), 1e-5);
}

TEST_F(LocalSteps, FewBitsBetweenGroupsKeepTheLossesClose) {
  const Arguments overrides = {"training.total_train_steps=24"};
  train("exact", 2, overrides, {"distributed.local_steps=4"});
  const auto exact = losses_of(run("exact"));
  EXPECT_LT(exact.back(), exact.front() - 0.5);
  for (const char* wire : {"bf16", "int8", "int4", "int2"}) {
    train(
        "rounded",
        2,
        overrides,
        {"distributed.local_steps=4",
         fmt::format("distributed.outer_wire={}", wire)});
    const auto rounded = losses_of(run("rounded"));
    EXPECT_EQ(rounded[3], exact[3]) << wire;
    EXPECT_NE(rounded[5], exact[5]) << wire;
    EXPECT_LE(largest_relative_difference(rounded, exact), 0.03) << wire;
  }
}

int64_t bytes_of(const Communicator& group) {
  int64_t bytes = 0;
  for (const CollectiveRecord& record : group.records()) {
    if (record.numel > 1000)
      bytes += record.bytes * (record.op == Collective::kAllReduce ? 2 : 1);
  }
  return bytes;
}

TEST_F(LocalSteps, SendAFractionOfDataParallelsBytes) {
  for (const auto& [wire, fraction] :
       {std::pair("fp32", 1.0 / 4), std::pair("int8", 1.0 / 16)}) {
    LoadOptions options{
        .path = *folder_ / "run.json",
        .overrides =
            {{"distributed.local_steps=4"},
             {fmt::format("distributed.outer_wire={}", wire)}},
        .world_size = 2,
        .find_model = {}};
    const TrainConfig config = load_train_config(options).config;
    testing::run_ranks_with_store(
        2, [&, fraction = fraction](int rank, const StorePtr& store) {
          ProcessMesh mesh({.dp = 2}, rank, store, {.max_records = 10000});
          mesh.divide_replicas(2);
          const TrainingData data =
              open_training_data(training_data_options(config));
          TrainStep step(config, mesh, data);
          for (const CommunicatorPtr& group : mesh.all())
            group->clear_records();
          for (int i = 1; i <= 8; ++i)
            step.run(i);
          step.local()->visit([](const Param&) {});
          EXPECT_EQ(bytes_of(*mesh.dp_cp()), 0);
          int64_t numel = 0;
          for (const Param& param : step.stages()[0]->params().all())
            numel += param.tensor.numel();
          // Eight steps of all gradients in float32.
          const double parallel = 8.0 * 2 * 4 * static_cast<double>(numel);
          EXPECT_NEAR(
              static_cast<double>(bytes_of(*mesh.between_groups())),
              fraction * parallel,
              0.15 * fraction * parallel);
        });
  }
}

TEST_F(LocalSteps, AGroupWhoseChangeIsFarFromTheOthersIsLeftOutAndNamed) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    const char* wire;
    int limit;
    float error;
    double tolerance;
  };
  for (const Case& each :
       {Case{"fp32", 0, kNan, 1e-6},
        {"fp32", 5, 10, 1e-6},
        {"int8", 5, kNan, 3e-4}}) {
    LoadOptions options{
        .path = *folder_ / "run.json",
        .overrides =
            {{"model.dtype=float32"},
             {"distributed.local_steps=4"},
             {"distributed.outer_learning_rate=1"},
             {"distributed.outer_momentum=0"},
             {"distributed.outer_alpha=0.25"},
             {fmt::format("distributed.outer_norm_limit={}", each.limit)},
             {fmt::format("distributed.outer_wire={}", each.wire)}},
        .world_size = 3,
        .find_model = {}};
    const TrainConfig config = load_train_config(options).config;
    std::vector<torch::Tensor> own(3);  // by group, before the exchange
    testing::run_ranks_with_store(3, [&](int rank, const StorePtr& store) {
      ProcessMesh mesh({.dp = 3}, rank, store);
      mesh.divide_replicas(3);
      const TrainingData data =
          open_training_data(training_data_options(config));
      TrainStep step(config, mesh, data);
      for (int i = 1; i <= 3; ++i)
        step.run(i);
      LocalTraining& local = *step.local();
      const auto query = [&] {
        torch::Tensor weight;
        local.visit([&](const Param& param) {
          if (param.name == kQuery)
            weight = param.tensor;
        });
        return weight;
      };
      own[static_cast<size_t>(rank)] = query().clone();
      if (rank == 1)
        query().add_(each.error);
      local.after_step(4);
      ASSERT_EQ(local.left_out().size(), 1U);
      EXPECT_THAT(
          local.left_out()[0],
          HasSubstr("group 1 is left out of the exchange of fragment 0"));
      // All ranks are behind the exchange, and so is what they wrote.
      const torch::Tensor common = (own[0] + own[2]) / 2;
      const torch::Tensor expected =
          rank == 1 ? common
                    : 0.75 * common + 0.25 * own[static_cast<size_t>(rank)];
      EXPECT_TRUE(torch::allclose(query(), expected, 0, each.tolerance))
          << each.wire << " " << each.error << " rank " << rank;
      local.after_step(8);
      EXPECT_TRUE(local.left_out().empty());
    });
  }
}

// Copies that no norm counts are sent as well: a tied head's, and norms' on the
// ranks of tp.
TEST_F(LocalSteps, AGroupWithACopyThatIsNotFiniteIsLeftOut) {
  for (const char* axis : {"pp", "tp"}) {
    LoadOptions options{
        .path = *folder_ / "run.json",
        .overrides =
            {{"distributed.local_steps=4"},
             {fmt::format("distributed.{}_size=2", axis)}},
        .world_size = 4,
        .find_model = {}};
    const TrainConfig config = load_train_config(options).config;
    testing::run_ranks_with_store(4, [&](int rank, const StorePtr& store) {
      ProcessMesh mesh(config.parallel_dims(), rank, store);
      mesh.divide_replicas(2);
      const TrainingData data =
          open_training_data(training_data_options(config));
      TrainStep step(config, mesh, data);
      const torch::NoGradGuard no_grad;
      LocalTraining& local = *step.local();
      int copies = 0;
      local.visit([&](const Param& param) {
        if (param.is_counted_here())
          return;
        ++copies;
        if (mesh.replica_group() == 1)
          torch::Tensor(param.tensor).fill_(std::nan(""));
      });
      EXPECT_EQ(copies > 0, rank % 2 == 1) << axis;
      local.after_step(4);
      EXPECT_THAT(
          local.left_out(), ElementsAre(HasSubstr("group 1 is left out")));
      local.visit([&](const Param& param) {
        EXPECT_TRUE(param.tensor.isfinite().all().item<bool>())
            << axis << " rank " << rank << " " << param.name;
      });
    });
  }
}

// They train as one rank that holds all experts and reads the group's tokens.
TEST_F(LocalSteps, GroupsThatDivideExpertsTrainAsSingleRanks) {
  const Arguments common = with_experts(
      {"distributed.local_steps=3",
       "distributed.local_groups=2",
       "training.grad_clip=0.5",
       "checkpoint.save_frequency=4"});
  train("single", 2, common);
  const std::string ep = "distributed.ep_size=2";
  const std::string half = "training.micro_batch_size=1";
  for (const GroupLayout& layout : {
           GroupLayout{"dp4", 4, {half}, {}},
           GroupLayout{"dp4_ep2", 4, {half, ep}, {}},
           GroupLayout{
               "dp4_ep2_tp2", 8, {half, ep, "distributed.tp_size=2"}, {}},
           GroupLayout{
               "dp4_ep2_pp2", 8, {half, ep, "distributed.pp_size=2"}, {}},
           GroupLayout{"dp2_cp2_ep2", 4, {ep, "distributed.cp_size=2"}, {}},
           // Each expert is on two ranks of a group.
           GroupLayout{
               "dp4_cp2_ep2", 8, {half, ep, "distributed.cp_size=2"}, {}},
       }) {
    SCOPED_TRACE(layout.name);
    train("divided", layout.ranks, common, layout.overrides);
    EXPECT_LE(
        largest_relative_difference(
            losses_of(run("divided")), losses_of(run("single"))),
        1e-5);
    for (const int step : {4, 8}) {
      const Checkpoint saved(checkpoint("divided", step));
      ASSERT_EQ(saved.names(), Checkpoint(checkpoint("single", step)).names());
      for (const std::string prefix :
           {"", "outer.momentum.", "outer.0.weight.", "outer.1.weight."}) {
        for (const std::string& name : {kQuery, kExpert}) {
          const auto expected = read("single", step, prefix + name);
          EXPECT_LE(
              (saved.read_whole(prefix + name) - expected)
                  .norm()
                  .item<double>(),
              1e-4 * expected.norm().item<double>())
              << prefix << name << " of step " << step;
        }
      }
    }
  }
  // Experts of groups that train apart differ, and are exchanged.
  EXPECT_FALSE(torch::equal(
      read("single", 4, "outer.0.weight." + kExpert),
      read("single", 4, "outer.1.weight." + kExpert)));
  EXPECT_FALSE(
      torch::equal(read("single", 4, kExpert), read("single", 8, kExpert)));
}

TEST_F(LocalSteps, AreDataParallelWithDividedExpertsToo) {
  const Arguments linear = with_experts(
      {"training.adam_eps=1e6",
       "training.learning_rate=5e5",
       "training.weight_decay=0",
       "distributed.ep_size=2",
       "checkpoint.save_frequency=8"});
  train("parallel", 4, linear);
  const auto expected = losses_of(run("parallel"));
  EXPECT_LT(expected.back(), expected.front() - 0.1);
  const Arguments plain = {
      "distributed.local_groups=2",
      "distributed.outer_learning_rate=1",
      "distributed.outer_momentum=0"};
  Arguments averaging = plain;
  averaging.emplace_back("distributed.local_steps=1");
  // A warm-up sums over all groups, and goes on with each by itself.
  Arguments warm = plain;
  warm.insert(
      warm.end(),
      {"distributed.local_steps=1", "distributed.local_warmup_steps=4"});
  for (const Arguments& local : {averaging, warm}) {
    train("local", 4, linear, local);
    EXPECT_LE(
        largest_relative_difference(losses_of(run("local")), expected), 1e-6);
    for (const std::string& name : {kQuery, kExpert}) {
      const auto weight = read("parallel", 8, name);
      EXPECT_LE(
          (read("local", 8, name) - weight).norm().item<double>(),
          1e-6 * weight.norm().item<double>())
          << name;
    }
  }
}

TEST_F(LocalSteps, DividedExpertsContinueBitForBitAndUnderAnotherDivision) {
  const Arguments common = with_experts(
      {"distributed.local_groups=2",
       "distributed.local_steps=4",
       "distributed.outer_wire=int8",
       "distributed.outer_fragments=2",
       "distributed.outer_delay=1",
       "distributed.outer_alpha=0.5",
       "distributed.grad_wire=int8",
       "training.check_replicas_every=3",
       "checkpoint.save_frequency=1"});
  Arguments divided = common;
  divided.emplace_back("distributed.ep_size=2");
  train("whole", 4, divided, {"model.dtype=bfloat16"});
  divided.emplace_back("model.dtype=bfloat16");
  expect_continues("whole", 4, divided, {3, 4, 6});
  const auto losses = losses_of(run("whole"));
  train(
      "undivided",
      4,
      common,
      {"model.dtype=bfloat16",
       "checkpoint.load_path=" + checkpoint("whole", 4).string()});
  EXPECT_LE(
      largest_relative_difference(
          losses_of(run("undivided")), {losses.begin() + 4, losses.end()}),
      5e-3);
}

TEST_F(LocalSteps, ClippingLimitsEachGroupByItsOwnNorm) {
  train(
      "clipped",
      2,
      {"distributed.local_steps=4",
       "training.grad_clip=0.01",
       "checkpoint.save_frequency=1",
       "training.max_tokens=384"});
  // exp_avg after the first step is (1 - beta1) times the clipped gradient.
  for (const std::string prefix : {"exp_avg.", "outer.1.exp_avg."}) {
    double squares = 0;
    const Checkpoint saved(checkpoint("clipped", 1));
    for (const std::string& name : saved.names()) {
      if (name.starts_with(prefix))
        squares += saved.read_whole(name).square().sum().item<double>();
    }
    EXPECT_NEAR(std::sqrt(squares), 0.1 * 0.01, 1e-6) << prefix;
  }
}

}  // namespace
}  // namespace brigade

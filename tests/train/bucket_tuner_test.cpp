#include "brigade/train/bucket_tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "brigade/base/units.h"
#include "tests/support/program.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(BucketTuner, CandidatesReachFromAQuarterMebibyteToOneBucketForAll) {
  EXPECT_THAT(
      candidate_capacities(25 * MiB, 3 * MiB),
      ElementsAre(25 * MiB, 256 * KiB, 512 * KiB, 1 * MiB, 2 * MiB, 4 * MiB));
  EXPECT_THAT(
      candidate_capacities(512 * KiB, 512 * KiB),
      ElementsAre(512 * KiB, 256 * KiB));
}

TEST(BucketTuner, LargerBucketsComeFirstAmongClosePredictions) {
  std::vector<TunedCapacity> capacities;
  for (const auto& [mib, exposed_ms] :
       {std::pair{8, 9.0}, {1, 5.0}, {2, 5.4}, {4, 5.5}, {16, 8.9}})
    capacities.push_back(
        {.capacity_bytes = mib * MiB, .predicted_exposed_ms = exposed_ms});
  const auto order = [&](double alike_ms) {
    rank_predictions(capacities, alike_ms);
    std::vector<int64_t> mib;
    for (const TunedCapacity& capacity : capacities)
      mib.push_back(capacity.capacity_bytes / MiB);
    return mib;
  };
  EXPECT_THAT(order(1.0), ElementsAre(4, 2, 1, 16, 8));
  EXPECT_THAT(order(0), ElementsAre(1, 2, 4, 16, 8));
}

TEST(BucketTuner, OnlyTheCapacityOfAConfigIsChanged) {
  EXPECT_EQ(
      json::parse(with_bucket_capacity(
          R"({"z": 1, "distributed": {"tp_size": 2}, "a": [0.1]})", 4 * MiB)),
      json::parse(
          R"({"z": 1, "distributed": {"tp_size": 2, "bucket_cap_mb": 4},
              "a": [0.1]})"));
  const std::string text =
      with_bucket_capacity(R"({"z": 1, "a": 2})", 256 * KiB);
  EXPECT_EQ(json::parse(text)["distributed"]["bucket_cap_mb"], 0.25);
  EXPECT_LT(text.find("\"z\""), text.find("\"a\""));
}

class TuneBuckets : public ::testing::Test {
 protected:
  void SetUp() override {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(6000)));
    // Enough gradients for more than four different plans.
    config["model"]["config"]["hidden_size"] = 192;
    config["model"]["config"]["intermediate_size"] = 512;
    config["logging"] = {{"run_dir", (folder_ / "run").string()}};
    testing::write_file(path("run.json"), config.dump());
  }
  testing::ProgramResult tune(const testing::Arguments& more) {
    testing::Arguments arguments = {
        "tune-buckets", "--config", path("run.json"), "--steps", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return testing::run_program(arguments);
  }
  std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }
  json read(const std::string& name) const {
    return json::parse(testing::read_file(path(name)));
  }

  testing::RunsFolder folder_;
};

TEST_F(TuneBuckets, WritesTheFastestOfTheSizesItRanBesideTheConfig) {
  const json before = read("run.json");
  const auto result = tune({"--nproc", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("all-reduce over 2 ranks: "));

  // bucket_cap_mb, buckets, predicted, measured, step.
  const std::regex row(
      R"(\n +([0-9.]+) +(\d+) +([0-9.]+) +([0-9.]+|-) +([0-9.]+|-)(.*))");
  std::map<double, double> step_ms;
  std::map<double, int> buckets;
  double fastest = 0;
  int of_the_config = 0;
  for (auto it =
           std::sregex_iterator(result.out.begin(), result.out.end(), row);
       it != std::sregex_iterator();
       ++it) {
    const double capacity = std::stod((*it)[1]);
    buckets[capacity] = std::stoi((*it)[2]);
    if ((*it)[5] != "-")
      step_ms[capacity] = std::stod((*it)[5]);
    if (it->str(6).find("<- fastest") != std::string::npos)
      fastest = capacity;
    if (it->str(6).find("the config's") != std::string::npos) {
      ++of_the_config;
      EXPECT_EQ(capacity, 25);
    }
  }
  EXPECT_EQ(of_the_config, 1) << result.out;
  ASSERT_GE(buckets.size(), 4U) << result.out;
  EXPECT_GT(buckets.begin()->second, buckets.rbegin()->second);
  // The best three and, if it is not among them, the config's own.
  EXPECT_GE(step_ms.size(), 3U);
  EXPECT_LE(step_ms.size(), 4U);
  ASSERT_TRUE(step_ms.contains(fastest)) << result.out;
  for (const auto& [capacity, ms] : step_ms)
    EXPECT_LE(step_ms[fastest], ms) << capacity;

  json expected = before;
  expected["distributed"]["bucket_cap_mb"] = fastest;
  EXPECT_EQ(read("run.tuned.json"), expected);
  EXPECT_THAT(result.out, HasSubstr("wrote " + path("run.tuned.json")));
  // Neither the user's file nor a run folder is touched.
  EXPECT_EQ(read("run.json"), before);
  EXPECT_FALSE(fs::exists(path("run")));

  const auto again = tune({"--nproc", "2"});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("run.tuned.json' is there already"));
}

TEST_F(TuneBuckets, WorksOnStagesAndWritesTheConfigItselfWhereAsked) {
  const json before = read("run.json");
  const auto result =
      tune({"--nproc", "4", "--write", "distributed.pp_size=2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  json expected = before;
  const json after = read("run.json");
  expected["distributed"] = after.at("distributed");
  EXPECT_EQ(after, expected);
  EXPECT_EQ(after.at("distributed").size(), 1U);
  EXPECT_FALSE(fs::exists(path("run.tuned.json")));
}

TEST_F(TuneBuckets, RefusesRunsWithNothingToTuneAtOnce) {
  const auto alone = tune({"--nproc", "1"});
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.err, HasSubstr("no communication to tune"));
  const auto cut = tune({"--nproc", "2", "distributed.tp_size=2"});
  EXPECT_EQ(cut.exit_code, 2);
  EXPECT_THAT(cut.err, HasSubstr("dp 1 * cp 1 = 1 rank"));
  const auto naive = tune({"--nproc", "2", "distributed.grad_sync=per_param"});
  EXPECT_EQ(naive.exit_code, 2);
  EXPECT_THAT(naive.err, HasSubstr("has no buckets"));
  const auto nowhere = tune({"--nproc", "2", "--out", path("no/such/f.json")});
  EXPECT_EQ(nowhere.exit_code, 6);
  EXPECT_THAT(nowhere.err, HasSubstr("cannot write '"));
}

}  // namespace
}  // namespace brigade

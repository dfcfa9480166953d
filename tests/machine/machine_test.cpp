#include "brigade/machine/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "brigade/base/error.h"

namespace brigade::machine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Machine, AnUnknownNameListsTheKnownOnesAndTheFieldsOfAFile) {
  EXPECT_THAT(
      [&] { find_machine("h1000"); },
      ThrowsMessage<ConfigError>(AllOf(
          HasSubstr("unknown machine 'h1000'"),
          HasSubstr("a100-80, a100-40-pcie"),
          HasSubstr("gb200"),
          HasSubstr("device.memory_bytes_per_s"),
          HasSubstr("inter.latency_s"),
          HasSubstr("device.bf16_rates"),
          HasSubstr("contention"))));
}

TEST(Machine, EveryKnownOneComesBackFromItsFile) {
  for (const Machine& machine : known_machines()) {
    std::vector<std::string> problems;
    const nlohmann::json file = to_json(machine);
    const Machine back = parse_machine(file, "", problems);
    EXPECT_TRUE(problems.empty()) << machine.name << ": " << problems.front();
    EXPECT_EQ(to_json(back), file) << machine.name;
    EXPECT_EQ(back.device.memory_bytes, machine.device.memory_bytes);
    EXPECT_EQ(back.device.peak_flops, machine.device.peak_flops);
  }
}

TEST(Machine, MeasuredRatesComeBackFromTheirFile) {
  Machine machine = find_machine("h100");
  machine.device.product_rates[0] = {{64, 1.5e10}, {1024, 4e10}};
  machine.device.elementwise_bytes_per_s = 2.5e9;
  machine.device.logits_bytes_per_s = 1.5e9;
  machine.device.weight_element_s = 2.5e-10;
  machine.contention = 0.75;
  machine.device_spread = 0.125;
  machine.collectives = {
      {Collective::kAllReduce, 2, 4096, 3e-4},
      {Collective::kAllReduce, 2, 65536, 5e-4},
      {Collective::kAllGather, 4, 4096, 1.25e-4},
      {Collective::kExchange, 2, 4096, 2.5e-4}};
  const nlohmann::json file = to_json(machine);
  std::vector<std::string> problems;
  const Machine back = parse_machine(file, "", problems);
  EXPECT_TRUE(problems.empty()) << problems.front();
  EXPECT_EQ(to_json(back), file);
  EXPECT_EQ(back.device.product_rates, machine.device.product_rates);
  EXPECT_EQ(back.collectives, machine.collectives);
  EXPECT_EQ(back.device.weight_element_s, 2.5e-10);
  EXPECT_EQ(back.contention, 0.75);
  EXPECT_EQ(back.device_spread, 0.125);
}

TEST(Machine, RatesThatDoNotAscendAreRefused) {
  nlohmann::json file = to_json(find_machine("h100"));
  file["device"]["bf16_rates"] = {{1024, 4e10}, {64, 1e10}};
  file["contention"] = 2;
  std::vector<std::string> problems;
  parse_machine(file, "", problems);
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_THAT(
      problems[0],
      AllOf(
          HasSubstr("/device/bf16_rates: expected pairs of a product's"),
          HasSubstr("ascending")));
  EXPECT_EQ(problems[1], "/contention: expected a number from 0 to 1, not 2");
}

TEST(Machine, CollectivesThatAreNoneAreRefused) {
  for (const nlohmann::json& bad :
       {nlohmann::json::parse(R"([["broadcast", 2, 4096, 1e-4]])"),
        nlohmann::json::parse(R"([["all_reduce", 1, 4096, 1e-4]])"),
        nlohmann::json::parse(R"([["all_reduce", 2, 4096, 0]])"),
        nlohmann::json::parse(R"([["all_reduce", 2, 1e300, 1e-4]])"),
        nlohmann::json::parse(R"([["all_reduce", 2, 4096]])"),
        nlohmann::json::parse(
            R"([["all_reduce", 2, 4096, 1], ["all_reduce", 2, 64, 1]])"),
        nlohmann::json::parse(R"({"all_reduce": 1})")}) {
    nlohmann::json file = to_json(find_machine("h100"));
    file["collectives"] = bad;
    std::vector<std::string> problems;
    parse_machine(file, "", problems);
    ASSERT_EQ(problems.size(), 1u) << bad.dump();
    EXPECT_THAT(
        problems[0], HasSubstr("/collectives: expected lists of a collective"));
  }
}

TEST(Machine, EveryProblemOfAFileIsReported) {
  nlohmann::json file = to_json(find_machine("h100"));
  file["device"]["compute_units"] = 0;
  file["device"]["memory"] = 3;
  file["intra"].erase("latency_s");
  file.erase("inter");
  std::vector<std::string> problems;
  parse_machine(file, "m.json: ", problems);
  ASSERT_EQ(problems.size(), 4u);
  EXPECT_THAT(
      problems[0],
      HasSubstr("m.json: /device/memory: unknown key; known are name, "));
  EXPECT_EQ(
      problems[1], "m.json: /inter: expected an object, but it is missing");
  EXPECT_EQ(
      problems[2],
      "m.json: /device/compute_units: expected a number from 1 to 1000000, not "
      "0");
  EXPECT_EQ(problems[3], "m.json: /intra/latency_s: is missing");
}

TEST(Machine, AFileWithoutAnyPeakIsRefused) {
  nlohmann::json file = to_json(find_machine("h100"));
  for (const char* key :
       {"fp32_flops", "bf16_flops", "fp8_flops", "mxfp8_flops", "fp4_flops"})
    file["device"].erase(key);
  std::vector<std::string> problems;
  parse_machine(file, "", problems);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_THAT(problems[0], HasSubstr("no peak is given; set bf16_flops"));
}

}  // namespace
}  // namespace brigade::machine

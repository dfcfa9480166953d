#include "brigade/launch/slurm_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Lists and their expansions as `scontrol show hostnames` prints them.
struct Case {
  const char* list;
  const char* first;
  uint64_t count;
};

TEST(SlurmHosts, ExpandAsScontrolDoes) {
  const Case cases[] = {
      {"n1", "n1", 1},
      {"n1,n2", "n1", 2},
      {"node[03-05]", "node03", 3},
      {"node[03-05,9],gpu1", "node03", 5},
      {"node[9,1]", "node9", 2},
      {"a-b[1-2].cluster", "a-b1.cluster", 2},
      {"rack[0-1]node[1-4]", "rack0node1", 8},
      {"x,rack[10-12]", "x", 4},
  };
  for (const Case& test : cases) {
    const SlurmHosts hosts = parse_slurm_hosts(test.list);
    EXPECT_EQ(hosts.first, test.first) << test.list;
    EXPECT_EQ(hosts.count, test.count) << test.list;
  }
}

TEST(SlurmHosts, RefusesAndQuotesAnInvalidList) {
  for (const char* list :
       {"",
        ",",
        "a,",
        "a[",
        "a[]",
        "a[1",
        "a[2-1]",
        "a[1;2]",
        "a]",
        "a b",
        "a[1-99999999999999999999]",
        "a[0-18446744073709551615]",
        "a[1-4294967296]b[1-4294967296]"}) {
    EXPECT_THAT(
        [&] { parse_slurm_hosts(list); },
        ThrowsMessage<ConfigError>(HasSubstr(std::string("'") + list + "'")))
        << list;
  }
}

TEST(SlurmHosts, TasksPerNodeAreRunLengths) {
  const std::string tasks = "2(x3),1,4(x2)";
  const int expected[] = {2, 2, 2, 1, 4, 4};
  for (int node = 0; node < 6; ++node)
    EXPECT_EQ(slurm_tasks_of_node(tasks, node), expected[node]);
  EXPECT_THROW(slurm_tasks_of_node(tasks, 6), ConfigError);
  EXPECT_THROW(slurm_tasks_of_node("2(x", 0), ConfigError);
}

}  // namespace
}  // namespace brigade

#include "brigade/launch/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>

#include "brigade/base/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Map = std::map<std::string, std::string, std::less<>>;

class EnvironmentTest : public ::testing::Test {
 protected:
  LaunchEnvironment read(Map map) const {
    map.emplace("TMPDIR", folder_.path().string());
    return read_environment(
        [&](std::string_view name) -> std::optional<std::string> {
          const auto found = map.find(name);
          if (found == map.end())
            return std::nullopt;
          return found->second;
        });
  }

  std::string error(const Map& map) const {
    return message_of<ConfigError>([&] { read(map); });
  }

  const TemporaryFolder folder_;
};

const Map kTorchrun = {
    {"RANK", "5"},
    {"WORLD_SIZE", "8"},
    {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "4"},
    {"MASTER_ADDR", "host0"},
    {"MASTER_PORT", "29500"},
    {"TORCHELASTIC_RESTART_COUNT", "2"},
    {"TORCHELASTIC_RUN_ID", "job7"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

const Map kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "1"},
    {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"OMPI_MCA_orte_precondition_transports", "23050350c1-8cf4"},
    {"PMIX_NAMESPACE", "1431699457"}};

const Map kSlurm = {
    {"SLURM_PROCID", "3"},
    {"SLURM_STEP_ID", "0"},
    {"SLURM_NTASKS", "6"},
    {"SLURM_LOCALID", "1"},
    {"SLURM_NODEID", "1"},
    {"SLURM_JOB_ID", "4711"},
    {"SLURM_JOB_NODELIST", "node[03-04]"},
    {"SLURM_TASKS_PER_NODE", "2,4"},
    {"SLURM_RESTART_COUNT", "1"}};

Map with(Map map, const Map& changes) {
  for (const auto& [name, value] : changes)
    map[name] = value;
  return map;
}

Map without(Map map, const std::string& name) {
  map.erase(name);
  return map;
}

TEST_F(EnvironmentTest, NothingSetIsOneRankWithoutAStore) {
  const auto environment = read({});
  EXPECT_EQ(environment.launcher, "single");
  EXPECT_EQ(environment.rank, 0);
  EXPECT_EQ(environment.world_size, 1);
  EXPECT_EQ(environment.store, StoreAddress{});
}

TEST_F(EnvironmentTest, TorchrunGivesRanksAndTheStoreItsAgentServes) {
  const auto environment = read(kTorchrun);
  EXPECT_EQ(environment.launcher, "torchrun");
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.world_size, 8);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 4);
  EXPECT_EQ(environment.restart_count, 2);
  EXPECT_EQ(environment.job_id, "job7");
  EXPECT_EQ(environment.store.kind, StoreAddress::Kind::kTcp);
  EXPECT_EQ(environment.store.host, "host0");
  EXPECT_EQ(environment.store.port, 29500);
  EXPECT_TRUE(environment.store.is_served);
}

TEST_F(EnvironmentTest, WithoutAnAgentRankZeroServesTheStore) {
  EXPECT_FALSE(
      read(without(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE")).store.is_served);
}

TEST_F(EnvironmentTest, APortBesideTheAgentsIsAnotherOneForEachJobAndRestart) {
  const int port = read(kTorchrun).store.own_port;
  EXPECT_GE(port, 15000);
  EXPECT_LT(port, 30000);
  EXPECT_EQ(read(with(kTorchrun, {{"RANK", "6"}})).store.own_port, port);
  for (const char* name :
       {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"})
    EXPECT_NE(read(with(kTorchrun, {{name, "3"}})).store.own_port, port)
        << name;
  EXPECT_EQ(
      read(without(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE")).store.own_port,
      0);
}

TEST_F(EnvironmentTest, EachMissingVariableOfTorchrunIsNamedAtOnce) {
  EXPECT_THAT(
      error({{"LOCAL_RANK", "0"}, {"RANK", "0"}}),
      AllOf(
          HasSubstr("WORLD_SIZE is not set"),
          HasSubstr("LOCAL_WORLD_SIZE is not set")));
  EXPECT_THAT(
      error(without(kTorchrun, "MASTER_PORT")),
      HasSubstr("MASTER_ADDR or MASTER_PORT is not set"));
}

TEST_F(EnvironmentTest, RanksWithoutALocalRankAreAloneOnTheirHosts) {
  Map map = {
      {"RANK", "5"},
      {"WORLD_SIZE", "8"},
      {"MASTER_ADDR", "job-master-0"},
      {"MASTER_PORT", "23456"}};
  const auto environment = read(map);
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.local_rank, 0);
  EXPECT_EQ(environment.local_world_size, 1);
  EXPECT_EQ(environment.store.host, "job-master-0");
}

const Map kHydra = {
    {"PMI_RANK", "1"},
    {"PMI_SIZE", "2"},
    {"MPI_LOCALRANKID", "1"},
    {"MPI_LOCALNRANKS", "2"}};

TEST_F(EnvironmentTest, MpiexecOfMpichOnOneMachineMeetsInAPrivateFolder) {
  const auto one = read(kHydra);
  EXPECT_EQ(one.launcher, "mpiexec");
  EXPECT_EQ(one.rank, 1);
  EXPECT_EQ(one.world_size, 2);
  EXPECT_EQ(one.local_rank, 1);
  EXPECT_EQ(one.local_world_size, 2);
  EXPECT_EQ(one.store.kind, StoreAddress::Kind::kFile);
  // Inside a step of Slurm that started mpiexec's proxies as well.
  EXPECT_EQ(
      read(with(kHydra, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}}))
          .launcher,
      "mpiexec");
}

TEST_F(EnvironmentTest, MpiexecOnSeveralMachinesNeedsAMasterAddressAndPort) {
  const auto two = with(kHydra, {{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}});
  EXPECT_THAT(
      error(two),
      AllOf(HasSubstr("PMI_SIZE=4"), HasSubstr("mpiexec -genv MASTER_ADDR")));
  EXPECT_THAT(
      error(with(two, {{"MASTER_ADDR", "host0"}})), HasSubstr("MASTER_PORT"));
  EXPECT_EQ(
      read(with(two, {{"MASTER_ADDR", "host0"}, {"MASTER_PORT", "29500"}}))
          .store.port,
      29500);
}

TEST_F(EnvironmentTest, ContradictionsNameBothVariablesAndTheirValues) {
  EXPECT_THAT(
      error(with(kTorchrun, {{"RANK", "8"}})),
      HasSubstr("RANK=8 must be below WORLD_SIZE=8"));
  EXPECT_THAT(
      error(with(kTorchrun, {{"LOCAL_RANK", "4"}})),
      HasSubstr("LOCAL_RANK=4 must be below LOCAL_WORLD_SIZE=4"));
  EXPECT_THAT(
      error(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})),
      HasSubstr("LOCAL_WORLD_SIZE=9 is more than WORLD_SIZE=8"));
  EXPECT_THAT(
      error(with(kTorchrun, {{"RANK", "two"}})),
      HasSubstr("RANK='two' is not a number"));
  EXPECT_THAT(
      error(with(kTorchrun, {{"MASTER_PORT", "70000"}})),
      HasSubstr("MASTER_PORT=70000"));
}

TEST_F(EnvironmentTest, OurSupervisorsStoreFileWinsOverOtherLaunchers) {
  auto map = with(kOpenMpi, kTorchrun);
  map["BRIGADE_STORE_FILE"] = "/private/store";
  map["BRIGADE_REPORT_FILE"] = "/private/report-5";
  map["BRIGADE_TERMINAL"] = "1";
  const auto environment = read(map);
  EXPECT_EQ(environment.launcher, "brigade");
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.store.kind, StoreAddress::Kind::kFile);
  EXPECT_EQ(environment.store.file, "/private/store");
  EXPECT_EQ(environment.report_file, "/private/report-5");
  EXPECT_TRUE(environment.is_terminal);
}

TEST_F(EnvironmentTest, OpenMpiOnOneMachineMeetsInAPrivateFolder) {
  const auto one = read(kOpenMpi);
  EXPECT_EQ(one.launcher, "mpirun");
  EXPECT_EQ(one.rank, 1);
  EXPECT_EQ(one.world_size, 2);
  EXPECT_EQ(one.store.kind, StoreAddress::Kind::kFile);
  struct stat status {};
  ASSERT_EQ(::stat(one.store.file.parent_path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
  // All ranks of a job come to one file, two jobs to two.
  EXPECT_EQ(
      read(with(
               kOpenMpi,
               {{"OMPI_COMM_WORLD_RANK", "0"},
                {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}))
          .store,
      one.store);
  EXPECT_NE(
      read(with(kOpenMpi, {{"OMPI_MCA_orte_precondition_transports", "other"}}))
          .store,
      one.store);
}

TEST_F(EnvironmentTest, OpenMpi6MayNumberTheRanksOfAHostInAnotherOrder) {
  const auto environment = read(with(
      kOpenMpi,
      {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}));
  EXPECT_EQ(environment.rank, 0);
  EXPECT_EQ(environment.local_rank, 1);
}

TEST_F(EnvironmentTest, ALauncherOfMpiIsSeenAroundAnotherLauncher) {
  EXPECT_TRUE(read(kOpenMpi).has_mpi);
  EXPECT_TRUE(read(with(kOpenMpi, kTorchrun)).has_mpi);
  EXPECT_FALSE(read(kTorchrun).has_mpi);
}

TEST_F(EnvironmentTest, AFolderThatOthersCanOpenIsRefused) {
  const fs::path folder = read(kOpenMpi).store.file.parent_path();
  fs::permissions(folder, fs::perms::others_read, fs::perm_options::add);
  EXPECT_THAT(
      error(kOpenMpi),
      AllOf(HasSubstr(folder.string()), HasSubstr("mode 0700")));
}

TEST_F(EnvironmentTest, OpenMpiOnSeveralMachinesNeedsAMasterAddress) {
  const auto two = with(
      kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}});
  EXPECT_THAT(
      error(two),
      AllOf(
          HasSubstr("OMPI_COMM_WORLD_SIZE=4"),
          HasSubstr("mpirun -x MASTER_ADDR=")));
  const auto environment =
      read(with(two, {{"MASTER_ADDR", "host0"}, {"MASTER_PORT", "29500"}}));
  EXPECT_EQ(environment.store.host, "host0");
  EXPECT_EQ(environment.store.port, 29500);
  EXPECT_FALSE(environment.store.is_served);
}

TEST_F(EnvironmentTest, OpenMpiWithoutAPortDerivesOneFromTheJob) {
  const auto two = with(
      kOpenMpi,
      {{"OMPI_COMM_WORLD_SIZE", "4"},
       {"OMPI_COMM_WORLD_RANK", "3"},
       {"MASTER_ADDR", "host0"}});
  const int port = read(two).store.port;
  EXPECT_GE(port, 15000);
  EXPECT_LT(port, 30000);
  EXPECT_EQ(read(with(two, {{"OMPI_COMM_WORLD_RANK", "2"}})).store.port, port);
  EXPECT_NE(
      read(with(two, {{"OMPI_MCA_orte_precondition_transports", "other"}}))
          .store.port,
      port);
  EXPECT_THAT(
      error(without(
          without(two, "OMPI_MCA_orte_precondition_transports"),
          "PMIX_NAMESPACE")),
      HasSubstr("MASTER_PORT is not"));
}

TEST_F(EnvironmentTest, ABatchScriptOfSlurmIsNoTask) {
  const auto script = without(kSlurm, "SLURM_STEP_ID");
  EXPECT_EQ(read(script).launcher, "single");
  EXPECT_EQ(read(script).world_size, 1);
  // A step's only task is not one of several ranks either.
  EXPECT_EQ(
      read(with(
               kSlurm,
               {{"SLURM_NTASKS", "1"},
                {"SLURM_PROCID", "0"},
                {"SLURM_LOCALID", "0"},
                {"SLURM_NODEID", "0"},
                {"SLURM_JOB_NODELIST", "node03"}}))
          .launcher,
      "single");
}

TEST_F(EnvironmentTest, AStepOfSlurmHasItsOwnTasks) {
  const auto step = with(
      kSlurm,
      {{"SLURM_STEP_NUM_TASKS", "2"},
       {"SLURM_PROCID", "1"},
       {"SLURM_STEP_NODELIST", "node04"}});
  EXPECT_EQ(read(step).world_size, 2);
  EXPECT_EQ(read(step).local_world_size, 2);
}

TEST_F(EnvironmentTest, SlurmMeetsAtTheFirstHostOfItsNodeList) {
  const auto environment = read(kSlurm);
  EXPECT_EQ(environment.launcher, "srun");
  EXPECT_EQ(environment.rank, 3);
  EXPECT_EQ(environment.world_size, 6);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_world_size, 4);
  EXPECT_EQ(environment.restart_count, 1);
  EXPECT_EQ(environment.store.kind, StoreAddress::Kind::kTcp);
  EXPECT_EQ(environment.store.host, "node03");
  EXPECT_GE(environment.store.port, 15000);
  EXPECT_LT(environment.store.port, 30000);
  // The other rank of the other node comes to the same place.
  const auto other = read(with(
      kSlurm,
      {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}}));
  EXPECT_EQ(other.store, environment.store);
  EXPECT_EQ(other.local_world_size, 2);
  EXPECT_NE(
      read(with(kSlurm, {{"SLURM_JOB_ID", "4712"}})).store.port,
      environment.store.port);
}

TEST_F(EnvironmentTest, SlurmOnOneNodeOpensNoPort) {
  const auto one = with(kSlurm, {{"SLURM_JOB_NODELIST", "node03"}});
  const auto environment = read(one);
  EXPECT_EQ(environment.store.kind, StoreAddress::Kind::kFile);
  EXPECT_EQ(environment.local_world_size, 6);
  EXPECT_NE(read(with(one, {{"SLURM_STEP_ID", "1"}})).store, environment.store);
  EXPECT_NE(
      read(with(one, {{"SLURM_RESTART_COUNT", "2"}})).store, environment.store);
}

TEST_F(EnvironmentTest, ABrokenNodeListIsAnErrorThatShowsIt) {
  EXPECT_THAT(
      error(with(kSlurm, {{"SLURM_JOB_NODELIST", "node[03-"}})),
      HasSubstr("'node[03-'"));
  EXPECT_THAT(
      error(without(kSlurm, "SLURM_JOB_NODELIST")),
      HasSubstr("SLURM_JOB_NODELIST is not set"));
}

}  // namespace
}  // namespace brigade

// Ranks that fail to meet, as real processes on one host: each ends within the
// timeout, with an error that names the missing one.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <memory>

#include "brigade/comm/store.h"
#include "tests/support/free_port.h"
#include "tests/support/program.h"
#include "tests/support/ranks_of_program.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Arguments;
using ::testing::ContainsRegex;
using testing::eventually;
using testing::FreePort;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProgramResult;
using testing::StartedProgram;

// The timeout of ranks that wait for something that never comes.
constexpr std::chrono::seconds kInVain{8};
// The timeout of ranks that meet, however slowly the machine starts them.
constexpr std::chrono::seconds kUntilTheyMeet{3600};

// A port with a listener while this object lives.
class TakenPort {
 public:
  TakenPort() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(socket_, generic, size), 0);
    EXPECT_EQ(::listen(socket_, 16), 0);
    ::getsockname(socket_, generic, &size);
    number_ = ntohs(address.sin_port);
  }
  ~TakenPort() { ::close(socket_); }
  TakenPort(const TakenPort&) = delete;
  TakenPort& operator=(const TakenPort&) = delete;
  int number() const { return number_; }

 private:
  int socket_;
  int number_ = 0;
};

class Rendezvous : public ::testing::Test {
 protected:
  Rendezvous() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(6000)));
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 4},
        {"total_train_steps", 100000000},
        {"learning_rate", 5e-3}};
    testing::write_file(folder_ / "run.json", config.dump());
  }

  // Starts a rank as torchrun would.
  std::unique_ptr<StartedProgram> start(
      int port,
      int rank,
      int world_size,
      std::chrono::seconds timeout,
      const std::string& name = "run") const {
    return std::make_unique<StartedProgram>(
        testing::program_path(),
        Arguments{
            "train",
            "--config",
            (folder_ / "run.json").string(),
            "logging.run_dir=" + (folder_ / name).string(),
            fmt::format("distributed.timeout_seconds={}", timeout.count()),
            fmt::format("distributed.dp_size={}", world_size)},
        std::map<std::string, std::string>{
            {"RANK", std::to_string(rank)},
            {"LOCAL_RANK", std::to_string(rank)},
            {"WORLD_SIZE", std::to_string(world_size)},
            {"LOCAL_WORLD_SIZE", std::to_string(world_size)},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", std::to_string(port)}});
  }
  size_t steps_of(const std::string& name) const {
    return fs::exists(folder_ / name / "metrics.jsonl")
               ? testing::read_metrics(folder_ / name).size()
               : 0;
  }
  // The rank's error, which is one line.
  static std::string failure_of(StartedProgram& rank, int exit_code) {
    const ProgramResult result = rank.wait();
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(
        result.err,
        AllOf(Not(HasSubstr("terminate")), Not(HasSubstr("frame"))));
    return result.err;
  }
  void expect_goes_on(const std::string& name) const {
    const size_t now = steps_of(name);
    EXPECT_TRUE(eventually([&] { return steps_of(name) >= now + 5; }));
  }

  testing::RunsFolder folder_;
};

TEST_F(Rendezvous, APortThatIsTakenIsNamed) {
  const TakenPort taken;
  const auto rank = start(taken.number(), 0, 2, kInVain);
  EXPECT_THAT(
      failure_of(*rank, 3),
      AllOf(
          HasSubstr(fmt::format("cannot listen on port {}", taken.number())),
          HasSubstr("MASTER_PORT")));
}

TEST_F(Rendezvous, ARankThatDoesNotComeIsNamed) {
  const FreePort free;
  const int port = free.number();
  const auto rank = start(port, 0, 2, kInVain);
  EXPECT_THAT(
      failure_of(*rank, 3),
      AllOf(
          HasSubstr("1 of 2 ranks joined within 8 s"),
          HasSubstr("rank 1 did not")));
}

TEST_F(Rendezvous, ARankWithoutRank0NamesTheAddress) {
  const FreePort free;
  const int port = free.number();
  const auto rank = start(port, 1, 2, kInVain);
  EXPECT_THAT(
      failure_of(*rank, 3),
      HasSubstr(fmt::format("could not connect to 127.0.0.1:{}", port)));
}

// The constructor of the store asks the server first (libtorch 2.15), or the
// first request does. The times include the grace for a connection or key.
constexpr const char* kUnanswered =
    "did not answer within [89] s|within 18 s, where nothing answered";

// The peer accepts the connection, as another kind of server would.
TEST_F(Rendezvous, APeerThatSaysNothingIsNamed) {
  const TakenPort silent;
  const auto rank = start(silent.number(), 1, 2, kInVain);
  EXPECT_THAT(
      failure_of(*rank, 3),
      AllOf(
          HasSubstr(fmt::format("127.0.0.1:{}", silent.number())),
          ContainsRegex(kUnanswered),
          HasSubstr("MASTER_PORT")));
}

// Whether this machine listens on the port, by /proc/net, without connecting.
bool is_listened_on(int port) {
  const std::string wanted = fmt::format(":{:04X} ", port);
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      const bool listens = line.find(" 0A ") != std::string::npos;
      if (listens && line.find(wanted) != std::string::npos)
        return true;
    }
  }
  return false;
}

TEST_F(Rendezvous, ARank0ThatIsStoppedAfterItListensIsNamed) {
  const FreePort free;
  const int port = free.number();
  const auto first = start(port, 0, 2, kUntilTheyMeet);
  ASSERT_TRUE(eventually([&] { return is_listened_on(port); }));
  testing::send_signal(first->pid(), SIGSTOP);
  const auto rank = start(port, 1, 2, kInVain);
  EXPECT_THAT(
      failure_of(*rank, 3),
      AllOf(
          HasSubstr(fmt::format("127.0.0.1:{}", port)),
          ContainsRegex(kUnanswered)));
  testing::send_signal(first->pid(), SIGKILL);
}

TEST_F(Rendezvous, ReportsAPortThatOtherMachinesCanReach) {
  if (can_bind_store_to_loopback())
    GTEST_SKIP() << "this libtorch's store listens on loopback alone";
  const FreePort free;
  const int port = free.number();
  const auto rank = start(port, 0, 2, kInVain);
  EXPECT_THAT(
      failure_of(*rank, 3),
      HasSubstr(fmt::format(
          "MASTER_ADDR is 127.0.0.1, but port {} is open on every network "
          "interface",
          port)));
}

// distributed.dp_size changes too, so that each rank's config fits its world.
TEST_F(Rendezvous, RanksOfWorldsOfDifferentSizesAllSaySo) {
  const FreePort free;
  const int port = free.number();
  const auto first = start(port, 0, 2, kUntilTheyMeet);
  const auto second = start(port, 1, 3, kUntilTheyMeet);
  const auto third = start(port, 2, 3, kUntilTheyMeet);
  for (StartedProgram* rank : {first.get(), second.get(), third.get()}) {
    EXPECT_THAT(
        failure_of(*rank, 2),
        AllOf(HasSubstr("as one of"), HasSubstr("WORLD_SIZE")));
  }
}

TEST_F(Rendezvous, ASecondJobOnAPortFailsAndTheFirstGoesOn) {
  const FreePort free;
  const int port = free.number();
  const auto first = start(port, 0, 2, kUntilTheyMeet, "first");
  const auto second = start(port, 1, 2, kUntilTheyMeet, "first");
  ASSERT_TRUE(eventually([&] { return steps_of("first") >= 3; }));
  const auto other_first = start(port, 0, 2, kUntilTheyMeet, "other");
  const auto other_second = start(port, 1, 2, kUntilTheyMeet, "other");
  EXPECT_THAT(failure_of(*other_first, 3), HasSubstr("cannot listen on port"));
  EXPECT_THAT(
      failure_of(*other_second, 2),
      AllOf(
          HasSubstr("rank 1 was started twice"),
          HasSubstr(fmt::format("process {} on host", second->pid())),
          HasSubstr("MASTER_PORT")));
  EXPECT_EQ(steps_of("other"), 0);
  expect_goes_on("first");
  testing::send_signal(first->pid(), SIGTERM);
  EXPECT_EQ(first->wait().exit_code, 128 + SIGTERM);
  EXPECT_EQ(second->wait().exit_code, 128 + SIGTERM);
}

TEST_F(Rendezvous, ARankThatIsStartedTwiceIsRefusedAndTheRunGoesOn) {
  const FreePort free;
  const int port = free.number();
  const auto first = start(port, 0, 2, kUntilTheyMeet);
  const auto second = start(port, 1, 2, kUntilTheyMeet);
  ASSERT_TRUE(eventually([&] { return steps_of("run") >= 3; }));
  const auto again = start(port, 1, 2, kUntilTheyMeet);
  EXPECT_THAT(failure_of(*again, 2), HasSubstr("rank 1 was started twice"));
  expect_goes_on("run");
  testing::send_signal(second->pid(), SIGTERM);
  EXPECT_EQ(first->wait().exit_code, 128 + SIGTERM);
  EXPECT_EQ(second->wait().exit_code, 128 + SIGTERM);
}

}  // namespace
}  // namespace brigade

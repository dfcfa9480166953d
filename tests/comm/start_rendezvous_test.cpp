#include "brigade/comm/start/start_rendezvous.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <latch>
#include <thread>

#include "brigade/comm/start/packed_texts.h"
#include "brigade/comm/start/start_facts.h"
#include "tests/support/message_of.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A test that waited this long would exceed ctest's limit.
constexpr std::chrono::hours kTimeout{24};

// Runs each rank's part on its own thread; returns what each threw, or "".
std::vector<std::string> run_ranks(
    int size,
    const std::function<void(int rank, const StorePtr& store)>& part) {
  const StorePtr store = make_in_process_store(kTimeout);
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        part(rank, store);
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] =
            fmt::format("{} {}", static_cast<int>(error.code()), error.what());
      }
    });
  }
  for (std::thread& rank : ranks)
    rank.join();
  return errors;
}

StartRendezvousOptions options_of(int rank, int size) {
  return {
      .rank = rank,
      .size = size,
      .host = "host" + std::to_string(rank),
      .timeout = kTimeout};
}

TEST(PackedTexts, AreWhatWasPacked) {
  const std::vector<std::string> texts = {"", "a:b", "12:", "x\ny"};
  EXPECT_EQ(unpack_texts(pack_texts(texts)), texts);
  for (const char* damaged : {"5:abc", "x", "3", "99999999999999999999:a"})
    EXPECT_THROW(unpack_texts(damaged), CommError) << damaged;
}

TEST(StartRendezvous, EveryRankLearnsEveryText) {
  std::vector<std::vector<std::string>> seen(5);
  const auto errors = run_ranks(5, [&](int rank, const StorePtr& store) {
    StartRendezvous rendezvous(store, options_of(rank, 5));
    rendezvous.exchange("first");
    seen[static_cast<size_t>(rank)] =
        rendezvous.exchange("of rank " + std::to_string(rank));
  });
  EXPECT_THAT(errors, ::testing::Each(""));
  for (const auto& texts : seen)
    EXPECT_THAT(
        texts,
        ElementsAre(
            "of rank 0", "of rank 1", "of rank 2", "of rank 3", "of rank 4"));
}

TEST(StartRendezvous, ARankThatCannotStartEndsAllWithItsCauseAndHost) {
  for (const int failing : {0, 2}) {
    const auto errors = run_ranks(3, [&](int rank, const StorePtr& store) {
      StartRendezvous rendezvous(store, options_of(rank, 3));
      if (rank != failing) {
        rendezvous.exchange("");
        return;
      }
      const DataError cause("no dataset 'data/x'");
      rendezvous.fail(cause);
      throw cause;
    });
    for (int rank = 0; rank < 3; ++rank) {
      const std::string& error = errors[static_cast<size_t>(rank)];
      EXPECT_THAT(error, HasSubstr("4 ")) << "DataError's exit code";
      EXPECT_THAT(error, HasSubstr("no dataset 'data/x'"));
      if (rank != failing) {
        EXPECT_THAT(
            error,
            HasSubstr(fmt::format(
                "rank {} on host host{} could not start", failing, failing)));
      }
    }
  }
}

// Tells when a text was set, whatever its key.
class WatchedStore : public Store {
 public:
  WatchedStore(StorePtr inner, std::string text, std::latch& is_set)
      : inner_(std::move(inner)), text_(std::move(text)), is_set_(is_set) {}

  void set(const std::string& key, const std::string& value) override {
    inner_->set(key, value);
    if (value.find(text_) != std::string::npos)
      is_set_.count_down();
  }
  std::string get(const std::string& key) override { return inner_->get(key); }
  bool contains(const std::string& key) override {
    return inner_->contains(key);
  }
  StorePtr with_prefix(const std::string& prefix) override {
    return std::make_shared<WatchedStore>(
        inner_->with_prefix(prefix), text_, is_set_);
  }

 private:
  StorePtr inner_;
  std::string text_;
  std::latch& is_set_;
};

TEST(StartRendezvous, RanksThatDoNotComeAreNamedAfterTheTimeout) {
  std::vector<std::string> progress;
  std::latch has_joined(1);
  const auto errors = run_ranks(2, [&](int rank, const StorePtr& store) {
    auto options = options_of(rank, 4);
    options.linger = std::chrono::milliseconds(0);
    if (rank == 1) {
      const auto watched =
          std::make_shared<WatchedStore>(store, "the second", has_joined);
      StartRendezvous(watched, options).exchange("the second");
    } else {
      has_joined.wait();
      options.timeout = std::chrono::seconds(3);
      options.report_every = std::chrono::milliseconds(20);
      options.on_progress = [&](const std::string& line) {
        progress.push_back(line);
      };
      StartRendezvous(store, options).exchange("");
    }
  });
  for (const std::string& error : errors)
    EXPECT_THAT(
        error,
        AllOf(
            HasSubstr("2 of 4 ranks joined"),
            HasSubstr("ranks 2, 3 did not"),
            HasSubstr("rank 0's host host0")));
  ASSERT_FALSE(progress.empty());
  EXPECT_THAT(
      progress.back(),
      HasSubstr("2 of 4 ranks have joined; waiting for ranks 2, 3"));
}

TEST(StartRendezvous, ARankThatIsThereAlreadyIsNotTakenTwice) {
  std::string late;
  const auto errors = run_ranks(2, [&](int rank, const StorePtr& store) {
    StartRendezvous rendezvous(store, options_of(rank, 2));
    EXPECT_EQ(rendezvous.exchange("first").size(), 2U);
    if (rank == 1) {
      StartRendezvous again(store, options_of(rank, 2));
      late = message_of<ConfigError>([&] { again.exchange("again"); });
    }
    // The other ranks are not affected.
    EXPECT_THAT(
        rendezvous.exchange("then " + std::to_string(rank)),
        ElementsAre("then 0", "then 1"));
  });
  EXPECT_THAT(errors, ::testing::Each(""));
  EXPECT_THAT(
      late,
      AllOf(
          HasSubstr("rank 1 was started twice: process "),
          HasSubstr("on host host1"),
          HasSubstr("MASTER_PORT")));
}

// The ranks of mpirun and srun on one host begin without the file.
TEST(StartRendezvous, RanksMeetInAFileThatIsNotThereYet) {
  const auto file = std::filesystem::temp_directory_path() /
                    fmt::format("brigade_rendezvous_{}", ::getpid());
  std::filesystem::remove(file);
  const auto errors = run_ranks(2, [&](int rank, const StorePtr&) {
    const StorePtr store = make_file_store(file, 2, kTimeout);
    StartRendezvous rendezvous(store, options_of(rank, 2));
    EXPECT_EQ(rendezvous.exchange("").size(), 2U);
    // c10d removes the file with its last user.
    rendezvous.exchange("");
  });
  EXPECT_THAT(errors, ::testing::Each(""));
  std::filesystem::remove(file);
}

TEST(StartRendezvous, WorldsOfDifferentSizesAreNoticedByAllRanks) {
  for (const auto& sizes : std::vector<std::vector<int>>{
           {2, 3, 3}, {3, 2, 3}, {3, 3, 2}, {2, 2, 3}}) {
    SCOPED_TRACE(fmt::format("{} {} {}", sizes[0], sizes[1], sizes[2]));
    const auto errors = run_ranks(3, [&](int rank, const StorePtr& store) {
      StartRendezvous(store, options_of(rank, sizes[static_cast<size_t>(rank)]))
          .exchange("");
    });
    for (size_t rank = 0; rank < 3; ++rank) {
      // Two ranks with size 2 are complete without the third.
      if (sizes == std::vector<int>{2, 2, 3} && rank < 2) {
        EXPECT_EQ(errors[rank], "");
        continue;
      }
      EXPECT_THAT(
          errors[rank],
          AllOf(
              HasSubstr("2 [start] rank "),
              HasSubstr("as one of"),
              HasSubstr("WORLD_SIZE")));
    }
  }
}

TEST(TcpStore, ARankThatFindsNoServerNamesHostAddressAndTimeout) {
  // Nothing listens on port 1 of the loopback.
  EXPECT_THAT(
      message_of<CommError>([] {
        make_tcp_store("127.0.0.1", 1, false, 2, std::chrono::seconds(1));
      }),
      AllOf(
          HasSubstr("host " + host_name() + " could not connect to "),
          // c10d's attempts may take 10 s more than their timeout.
          ContainsRegex("127\\.0\\.0\\.1:1 within (1|11) s"),
          HasSubstr("MASTER_PORT")));
}

std::vector<std::string> agree(const std::vector<RankStart>& starts) {
  const int size = static_cast<int>(starts.size());
  return run_ranks(size, [&](int rank, const StorePtr& store) {
    StartRendezvous rendezvous(store, options_of(rank, size));
    agree_on_start(
        rendezvous,
        {.rank = rank,
         .world_size = size,
         .local_world_size = 1,
         .store = {.host = "node0"}},
        starts[static_cast<size_t>(rank)]);
  });
}

RankStart rank_start(const std::string& host, const std::string& config) {
  return {
      .host = host,
      .address = {.address = "10.0.0.1"},
      .facts = {
          .facts = {
              {"the program's version", "1", "install one"},
              {"the config", config, "give every rank the same"}}}};
}

TEST(AgreeOnStart, EqualFactsAreAgreed) {
  EXPECT_THAT(
      agree({rank_start("a", "x"), rank_start("b", "x")}), ::testing::Each(""));
}

TEST(AgreeOnStart, ADifferentFactIsNamedOnEveryRankWithBothHosts) {
  for (const std::string& error : agree(
           {rank_start("a", "x"), rank_start("a", "x"), rank_start("b", "y")}))
    EXPECT_THAT(
        error,
        AllOf(
            HasSubstr("the config differs among the ranks"),
            HasSubstr("rank 0 on host a has x"),
            HasSubstr("rank 2 on host b has y"),
            HasSubstr("give every rank the same")));
}

TEST(AgreeOnStart, ADifferentDigestNamesTheEntriesThatDiffer) {
  std::vector<RankStart> starts = {
      rank_start("a", "x"), rank_start("b", "y"), rank_start("c", "x")};
  for (RankStart& start : starts)
    start.facts.facts[1].entries = {
        {"training.seed", "1"}, {"model.dtype", "f"}};
  starts[1].facts.facts[1].entries["training.seed"] = "7";
  starts[1].facts.facts[1].entries["dataset.shuffle"] = "true";
  for (const std::string& error : agree(starts))
    EXPECT_THAT(
        error,
        AllOf(
            HasSubstr("the config differs among the ranks: dataset.shuffle is "
                      "absent on rank 0 on host a and true on rank 1 on host "
                      "b; training.seed is 1 on rank 0 on host a and 7 on "
                      "rank 1 on host b; give every rank the same"),
            ::testing::Not(HasSubstr("model.dtype"))));
}

TEST(AgreeOnStart, ALoopbackAddressOnOneOfSeveralHostsIsRefused) {
  auto starts = {rank_start("a", "x"), rank_start("b", "x")};
  std::vector<RankStart> ranks(starts);
  ranks[0].address = {
      .address = "127.0.1.1", .resolved = "127.0.1.1", .is_loopback = true};
  for (const std::string& error : agree(ranks))
    EXPECT_THAT(
        error,
        AllOf(
            HasSubstr("rank 0 on host a has only the loopback address "
                      "127.0.1.1"),
            HasSubstr("MASTER_ADDR='node0' resolves to 127.0.1.1 there"),
            HasSubstr("/etc/hosts"),
            HasSubstr("GLOO_SOCKET_IFNAME")));
  // Host names decide, not the launcher's counts.
  ranks[1].host = "a";
  EXPECT_THAT(agree(ranks), ::testing::Each(""));
}

TEST(AgreeOnStart, AFolderThatAllSeeIsLeftAsItWas) {
  const auto folder =
      std::filesystem::temp_directory_path() / "brigade_shared_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  auto first = rank_start("a", "x");
  first.facts.shared_folder = folder / "runs" / "one";
  EXPECT_THAT(agree({first, rank_start("b", "x")}), ::testing::Each(""));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace brigade

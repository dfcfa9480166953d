#include "brigade/hub/hub.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "tests/support/raw_file.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

// tests/hub/hub_server.py as a child that ends with this object.
class HubServer {
 public:
  HubServer(const fs::path& folder, const fs::path& log) {
    int to_child[2], from_child[2];
    EXPECT_EQ(::pipe(to_child), 0);
    EXPECT_EQ(::pipe(from_child), 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::dup2(to_child[0], STDIN_FILENO);
      ::dup2(from_child[1], STDOUT_FILENO);
      for (const int end :
           {to_child[0], to_child[1], from_child[0], from_child[1]})
        ::close(end);
      const std::string script = BRIGADE_SOURCE_DIR "/tests/hub/hub_server.py";
      ::execlp(
          "python3",
          "python3",
          script.c_str(),
          folder.c_str(),
          log.c_str(),
          nullptr);
      ::_exit(127);
    }
    ::close(to_child[0]);
    ::close(from_child[1]);
    stdin_ = to_child[1];
    FILE* output = ::fdopen(from_child[0], "r");
    EXPECT_EQ(std::fscanf(output, "%d", &port_), 1);
    std::fclose(output);
  }
  ~HubServer() {
    ::close(stdin_);
    ::waitpid(child_, nullptr, 0);
  }
  HubServer(const HubServer&) = delete;
  HubServer& operator=(const HubServer&) = delete;
  std::string endpoint() const {
    return fmt::format("http://127.0.0.1:{}", port_);
  }

 private:
  pid_t child_ = -1;
  int stdin_ = -1;
  int port_ = 0;
};

class HubTest : public ::testing::Test {
 protected:
  HubTest() : server_(folder_ / "models", folder_ / "log") {
    options_.cache_dir = folder_ / "cache";
    options_.endpoint = server_.endpoint();
    options_.retry_delay = std::chrono::milliseconds(1);
  }

  // A model of a name that says what the server does with it.
  void add_model(const std::string& id) {
    const fs::path model = folder_ / "models" / id;
    fs::create_directories(model);
    write_bytes(model / "config.json", R"({"model_type":"llama"})");
    write_bytes(model / "tokenizer.json", "{}");
    write_bytes(model / "README.md", "not wanted");
    weights_.clear();
    for (int i = 0; i < 5000; ++i)
      weights_ += static_cast<char>(i * i % 251);
    write_bytes(model / "model.safetensors", weights_);
  }

  fs::path fetch(const std::string& id) {
    return fetch_from_hub(id, HubContent{}, options_);
  }

  template <typename Expected>
  std::string refusal(const std::string& id) {
    try {
      fetch(id);
    } catch (const Expected& error) {
      return error.what();
    } catch (const Error& error) {
      return fmt::format("another error: {}", error.what());
    }
    return "fetched";
  }

  std::vector<std::string> requests() const {
    std::vector<std::string> lines;
    std::ifstream log(folder_ / "log");
    for (std::string line; std::getline(log, line);)
      lines.push_back(line);
    return lines;
  }

  fs::path model_cache(const std::string& name) const {
    return folder_ / "cache" / ("models--org--" + name);
  }

  const TemporaryFolder folder_;
  HubServer server_;
  HubOptions options_;
  std::string weights_;
};

TEST(HubId, IsANameOrAnOrganisationAndAName) {
  for (const char* id : {"gpt2", "HuggingFaceTB/SmolLM-135M", "a/b.c_d"})
    EXPECT_TRUE(is_hub_id(id)) << id;
  for (const char* id :
       {"",
        "/",
        "a/",
        "/b",
        "a/b/c",
        "../b",
        "a/..",
        "./b",
        "a b",
        "a/b?c",
        "a--b/c",
        "a/b%2f"})
    EXPECT_FALSE(is_hub_id(id)) << id;
}

TEST_F(HubTest, DownloadsIntoTheLayoutOfHuggingFacesOwnCache) {
  add_model("org/plain");
  std::vector<uint64_t> progress;
  options_.on_progress = [&](const HubProgress& now) {
    if (now.file == "model.safetensors") {
      EXPECT_EQ(now.total_bytes, 5000U);
      progress.push_back(now.done_bytes);
    }
  };
  const fs::path folder = fetch("org/plain");
  EXPECT_EQ(folder, model_cache("plain") / "snapshots" / kCommit);
  EXPECT_EQ(read_text_file(folder / "model.safetensors"), weights_);
  EXPECT_EQ(
      read_text_file(folder / "config.json"), R"({"model_type":"llama"})");
  EXPECT_TRUE(fs::exists(folder / "tokenizer.json"));
  EXPECT_FALSE(fs::exists(folder / "README.md"));
  EXPECT_EQ(read_text_file(model_cache("plain") / "refs/main"), kCommit);
  // printf 'blob 2\0{}' | sha1sum
  EXPECT_EQ(
      fs::read_symlink(folder / "tokenizer.json"),
      "../../blobs/9e26dfeeb6e641a33dae4961196235bdb965b21b");
  ASSERT_FALSE(progress.empty());
  EXPECT_EQ(progress.back(), 5000U);
}

TEST_F(HubTest, CachedModelsNeedNoNetwork) {
  add_model("org/plain");
  const fs::path folder = fetch("org/plain");
  const size_t before = requests().size();
  EXPECT_EQ(fetch("org/plain"), folder);
  EXPECT_EQ(requests().size(), before);
  options_.network = HubOptions::Network::kOffline;
  EXPECT_EQ(fetch("org/plain"), folder);
  EXPECT_THAT(refusal<ConfigError>("org/other"), HasSubstr("HF_HUB_OFFLINE"));
}

TEST_F(HubTest, AFileThatTheCacheLacksIsDownloadedAlone) {
  add_model("org/plain");
  const fs::path folder = fetch("org/plain");
  fs::remove(folder / "config.json");
  fs::remove_all(folder_ / "log");
  EXPECT_EQ(find_in_hub_cache("org/plain", {}, options_), std::nullopt);
  fetch("org/plain");
  EXPECT_TRUE(fs::exists(folder / "config.json"));
  EXPECT_THAT(requests(), Not(Contains(HasSubstr("model.safetensors"))));
}

TEST_F(HubTest, WeightsAreSkippedWhenNotWanted) {
  add_model("org/plain");
  const fs::path folder = fetch_from_hub(
      "org/plain", {.weights = HubContent::Weights::kSkip}, options_);
  EXPECT_TRUE(fs::exists(folder / "config.json"));
  EXPECT_FALSE(fs::exists(folder / "model.safetensors"));
}

TEST_F(HubTest, ShardsComeFromTheIndex) {
  add_model("org/sharded");
  const fs::path model = folder_ / "models/org/sharded";
  fs::rename(model / "model.safetensors", model / "one.safetensors");
  write_bytes(model / "two.safetensors", "2");
  write_bytes(
      model / "model.safetensors.index.json",
      R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const fs::path folder = fetch("org/sharded");
  EXPECT_EQ(read_text_file(folder / "one.safetensors"), weights_);
  EXPECT_EQ(read_text_file(folder / "two.safetensors"), "2");
}

TEST_F(HubTest, AnIndexThatLeadsOutOfItsFolderIsRefused) {
  add_model("org/evil");
  const fs::path model = folder_ / "models/org/evil";
  fs::remove(model / "model.safetensors");
  write_bytes(
      model / "model.safetensors.index.json",
      R"({"weight_map":{"a":"../../../escaped"}})");
  EXPECT_THAT(
      refusal<DataError>("org/evil"),
      HasSubstr("not a file in the same folder"));
}

TEST_F(HubTest, AnInterruptedTransferGoesOnWhereItEnded) {
  add_model("org/interrupted");
  const fs::path folder = fetch("org/interrupted");
  EXPECT_EQ(read_text_file(folder / "model.safetensors"), weights_);
  std::vector<std::string> ranges;
  for (const std::string& line : requests()) {
    if (line.starts_with("store GET"))
      ranges.push_back(line.substr(line.find("first=")));
  }
  EXPECT_THAT(
      ranges,
      ::testing::ElementsAre(
          StartsWith("first=0 "),
          StartsWith("first=1000 "),
          StartsWith("first=2000 "),
          StartsWith("first=3000 "),
          StartsWith("first=4000 ")));
}

TEST_F(HubTest, ALaterRunResumesWhatAnEarlierOneLeft) {
  add_model("org/plain");
  const fs::path folder = fetch("org/plain");
  const fs::path blob = fs::canonical(folder / "model.safetensors");
  fs::remove(folder / "model.safetensors");
  fs::remove(blob);
  write_bytes(blob.string() + ".incomplete", weights_.substr(0, 4321));
  fetch("org/plain");
  EXPECT_EQ(read_text_file(folder / "model.safetensors"), weights_);
  EXPECT_THAT(
      requests(),
      Contains(AllOf(StartsWith("store GET"), HasSubstr("first=4321"))));
  EXPECT_FALSE(fs::exists(blob.string() + ".incomplete"));
}

TEST_F(HubTest, AServerWithoutRangesSendsTheWholeFileAgain) {
  add_model("org/no-ranges");
  EXPECT_EQ(
      read_text_file(fetch("org/no-ranges") / "model.safetensors"), weights_);
}

TEST_F(HubTest, AnOverloadedServerIsAskedAgain) {
  add_model("org/overloaded");
  EXPECT_EQ(
      read_text_file(fetch("org/overloaded") / "model.safetensors"), weights_);
}

TEST_F(HubTest, DamagedContentIsRefusedAndNeverGetsItsName) {
  add_model("org/damaged");
  EXPECT_THAT(
      refusal<DataError>("org/damaged"),
      AllOf(HasSubstr("model.safetensors"), HasSubstr("hash")));
  const fs::path cache = model_cache("damaged");
  EXPECT_FALSE(fs::exists(cache / "snapshots" / kCommit / "model.safetensors"));
  EXPECT_FALSE(fs::exists(cache / "refs/main"));
  for (const auto& entry : fs::directory_iterator(cache / "blobs"))
    EXPECT_LT(entry.file_size(), 100U) << entry.path();
}

TEST_F(HubTest, MoreThanWasAnnouncedIsRefused) {
  add_model("org/long");
  EXPECT_THAT(
      refusal<DataError>("org/long"),
      AllOf(HasSubstr("model.safetensors"), HasSubstr("longer than the 5000")));
}

TEST_F(HubTest, TheTokenOpensAGatedModelAndIsSentToTheHubAlone) {
  add_model("org/gated");
  EXPECT_THAT(
      refusal<ConfigError>("org/gated"),
      AllOf(HasSubstr("'org/gated'"), HasSubstr("set HF_TOKEN")));
  options_.token = "wrong";
  EXPECT_THAT(
      refusal<ConfigError>("org/gated"),
      AllOf(
          HasSubstr("the token given has no access"), Not(HasSubstr("wrong"))));
  options_.token = "secret";
  EXPECT_EQ(read_text_file(fetch("org/gated") / "model.safetensors"), weights_);
  EXPECT_THAT(requests(), Contains(StartsWith("store GET")));
  for (const std::string& line : requests()) {
    if (line.starts_with("store")) {
      EXPECT_THAT(line, HasSubstr("token=none"));
    }
  }
}

TEST_F(HubTest, AnUnknownModelIsNamed) {
  EXPECT_THAT(
      refusal<ConfigError>("org/absent"),
      AllOf(HasSubstr("'org/absent'"), HasSubstr("404")));
}

TEST_F(HubTest, AModelWithoutSafetensorsListsWhatItHas) {
  add_model("org/pickled");
  const fs::path model = folder_ / "models/org/pickled";
  fs::rename(model / "model.safetensors", model / "pytorch_model.bin");
  EXPECT_THAT(
      refusal<ConfigError>("org/pickled"),
      AllOf(HasSubstr("no safetensors"), HasSubstr("pytorch_model.bin")));
}

TEST_F(HubTest, AHubThatDoesNotAnswerIsADataErrorThatNamesIt) {
  options_.endpoint = "http://127.0.0.1:1";
  EXPECT_THAT(
      refusal<DataError>("org/plain"),
      AllOf(HasSubstr("http://127.0.0.1:1"), HasSubstr("'org/plain'")));
}

TEST_F(HubTest, ACacheThatCannotBeWrittenIsAStorageError) {
  add_model("org/plain");
  write_bytes(folder_ / "file", "");
  options_.cache_dir = folder_ / "file";
  EXPECT_THAT(
      refusal<StorageError>("org/plain"),
      HasSubstr((folder_ / "file").string()));
}

}  // namespace
}  // namespace brigade

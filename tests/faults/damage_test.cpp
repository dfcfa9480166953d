// No damage to a checkpoint is loaded silently.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>

#include "brigade/base/error.h"
#include "brigade/checkpoint/verify.h"
#include "made_checkpoint.h"
#include "tests/support/program.h"
#include "tests/support/raw_file.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::read_file;
using testing::save_made;

constexpr size_t kPage = 4096;

class Damage : public ::testing::Test {
 protected:
  Damage() : folder_(temporary_.path()) {
    save_made(folder_, 1);
    save_made(folder_, 2);
    save_made(folder_ / "other", 2, "another run");
  }
  fs::path file(const std::string& name) const { return folder_ / "2" / name; }
  std::string reason(VerifyLevel level = VerifyLevel::kFull) const {
    return find_reason_to_reject(folder_ / "2", level);
  }
  // The damaged file is named, and restoring it makes the checkpoint valid.
  void expect_rejected(const std::string& name, const std::string& damaged) {
    const std::string before = read_file(file(name));
    ASSERT_NE(damaged, before);
    write_bytes(file(name), damaged);
    EXPECT_THAT(reason(), HasSubstr(file(name).string()));
    write_bytes(file(name), before);
    EXPECT_EQ(reason(), "");
  }

  TemporaryFolder temporary_;
  fs::path folder_;
  const std::vector<std::string> files_ = {
      "model.safetensors",
      "optimizer.safetensors",
      "manifest.json"};
};

TEST_F(Damage, AFlippedBitOfAnyKindIsFound) {
  ASSERT_EQ(reason(), "");
  for (const std::string& name : files_) {
    const std::string before = read_file(file(name));
    // Every byte of the manifest, and every 97th one of the other files.
    const size_t stride = name == "manifest.json" ? 1 : 97;
    for (size_t i = 0; i < before.size(); i += stride) {
      SCOPED_TRACE(name + " byte " + std::to_string(i));
      std::string damaged = before;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
      write_bytes(file(name), damaged);
      const std::string found = reason();
      EXPECT_NE(found, "");
      if (found.empty())
        return;
    }
    write_bytes(file(name), before);
  }
  EXPECT_EQ(reason(), "");
}

TEST_F(Damage, ACutLongerOrZeroedFileIsFound) {
  for (const std::string& name : files_) {
    SCOPED_TRACE(name);
    const std::string before = read_file(file(name));
    for (const size_t size : {size_t{0}, size_t{1}, before.size() - 1})
      expect_rejected(name, before.substr(0, size));
    expect_rejected(name, before + "x");
    for (size_t page = 0; page < before.size(); page += kPage) {
      std::string damaged = before;
      damaged.replace(
          page,
          kPage,
          std::string(std::min(kPage, before.size() - page), '\0'));
      expect_rejected(name, damaged);
    }
  }
}

TEST_F(Damage, AMissingFileIsFound) {
  for (const std::string& name : files_) {
    const fs::path away = temporary_.path() / "away";
    fs::rename(file(name), away);
    EXPECT_NE(reason(VerifyLevel::kSize), "") << name;
    fs::rename(away, file(name));
  }
  EXPECT_EQ(reason(), "");
}

TEST_F(Damage, FilesOfAnotherStepOrRunAreFoundByTheirSizeAlone) {
  for (const fs::path& from : {folder_ / "1", folder_ / "other" / "2"}) {
    for (const std::string& name : files_) {
      SCOPED_TRACE((from / name).string());
      const std::string before = read_file(file(name));
      write_bytes(file(name), read_file(from / name));
      EXPECT_NE(reason(), "");
      // Files of equal size still name the run and step that they belong to.
      EXPECT_NE(reason(VerifyLevel::kSize), "");
      write_bytes(file(name), before);
    }
  }
}

TEST_F(Damage, AnEditedManifestIsFoundWhateverWasEdited) {
  const std::string before = read_file(file("manifest.json"));
  const auto edit = [&](const std::function<void(nlohmann::json&)>& change) {
    auto manifest = nlohmann::json::parse(before);
    change(manifest);
    write_bytes(file("manifest.json"), manifest.dump(2) + "\n");
    return reason();
  };
  EXPECT_EQ(edit([](auto&) {}), "");
  const auto changed = HasSubstr("was changed after it was written");
  EXPECT_THAT(edit([](auto& m) { m["step"] = 3; }), changed);
  EXPECT_THAT(
      edit([](auto& m) { m["config"]["training"]["seed"] = 8; }), changed);
  EXPECT_THAT(
      edit([](auto& m) { m["contents"].erase("optimizer.safetensors"); }),
      changed);
  EXPECT_THAT(edit([](auto& m) { m["new"] = 1; }), changed);
  EXPECT_THAT(edit([](auto& m) { m.erase("sha256"); }), HasSubstr("sha256"));
  // An edited one does not pass for an older version, which has nothing to
  // verify.
  EXPECT_THAT(edit([](auto& m) { m["version"] = 1; }), HasSubstr("version 1"));
  EXPECT_NE(
      edit([](auto& m) {
        m["version"] = 1;
        m.erase("sha256");
        m.erase("contents");
      }),
      "");
}

// Checkpoints from before there were digests load unverified.
TEST_F(Damage, ACheckpointOfVersion1StillLoads) {
  const fs::path old = temporary_.path() / "old";
  fs::create_directory(old);
  const auto filled = torch::full({2}, 3.0F);
  write_bytes(
      old / "model.safetensors",
      raw_safetensors(
          R"({"model.a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
          std::string(static_cast<const char*>(filled.data_ptr()), 8)));
  const nlohmann::json manifest = {
      {"format", "brigade checkpoint"},
      {"version", 1},
      {"step", 5},
      {"tokens", 10},
      {"dtype", "float32"},
      {"tokenizer", ""},
      {"writers", 1},
      {"files", {"model.safetensors"}},
      {"model", nlohmann::json::object()},
      {"config", nlohmann::json::object()}};
  write_bytes(old / "manifest.json", manifest.dump());
  EXPECT_EQ(find_reason_to_reject(old, VerifyLevel::kFull), "");
  EXPECT_FALSE(read_manifest(old).is_verifiable());
  EXPECT_TRUE(torch::equal(Checkpoint(old).read_whole("model.a"), filled));
}

// An ordinary open() of a pipe waits for its writer; a folder cannot be read,
// and a device may have no end.
TEST_F(Damage, PipesFoldersAndDevicesAreFoundAndNotWaitedFor) {
  for (const std::string& name : files_) {
    for (const char* kind : {"pipe", "folder", "device"}) {
      SCOPED_TRACE(name + " " + kind);
      fs::rename(file(name), folder_ / "aside");
      if (kind == std::string("pipe"))
        ASSERT_EQ(::mkfifo(file(name).c_str(), 0600), 0);
      else if (kind == std::string("folder"))
        fs::create_directory(file(name));
      else
        fs::create_symlink("/dev/zero", file(name));
      for (const VerifyLevel level : {VerifyLevel::kSize, VerifyLevel::kFull})
        EXPECT_THAT(reason(level), HasSubstr(file(name).string()));
      fs::remove(file(name));
      fs::rename(folder_ / "aside", file(name));
    }
  }
  EXPECT_EQ(reason(), "");
}

}  // namespace
}  // namespace brigade

#include "brigade/hub/cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cctype>
#include <system_error>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/safetensors/folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

std::string folder_name(const std::string& id) {
  std::string name = "models--" + id;
  const auto slash = name.find('/');
  if (slash != std::string::npos)
    name.replace(slash, 1, "--");
  return name;
}

void create(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw StorageError(fmt::format(
        "[hub] cannot create folder '{}': {}",
        folder.string(),
        error.message()));
  }
}

}  // namespace

HubCache::HubCache(fs::path cache_dir, const std::string& id)
    : root_(cache_dir / folder_name(id)),
      locks_(cache_dir / ".locks" / folder_name(id)) {}

std::optional<fs::path> HubCache::snapshot(const std::string& revision) const {
  std::string commit = revision;
  const fs::path ref = root_ / "refs" / revision;
  if (fs::is_regular_file(ref)) {
    commit = read_text_file(ref);
    while (!commit.empty() && std::isspace(commit.back()) != 0)
      commit.pop_back();
  }
  if (!is_bare_file_name(commit))
    return std::nullopt;
  const fs::path folder = snapshot_of_commit(commit);
  if (!fs::is_directory(folder))
    return std::nullopt;
  return folder;
}

fs::path HubCache::snapshot_of_commit(const std::string& commit) const {
  return root_ / "snapshots" / commit;
}

fs::path HubCache::blob(const std::string& etag) const {
  return root_ / "blobs" / etag;
}

fs::path HubCache::lock(const std::string& etag) const {
  return locks_ / (etag + ".lock");
}

void HubCache::create_folders(const std::string& commit) const {
  create(root_ / "refs");
  create(root_ / "blobs");
  create(snapshot_of_commit(commit));
  create(locks_);
}

void HubCache::link(
    const std::string& commit,
    const std::string& file,
    const std::string& etag) const {
  const fs::path place = snapshot_of_commit(commit) / file;
  const fs::path temporary =
      fmt::format("{}.tmp-{}", place.string(), ::getpid());
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_symlink(fs::path("../../blobs") / etag, temporary, error);
  if (!error)
    fs::rename(temporary, place, error);
  if (error) {
    throw StorageError(fmt::format(
        "[hub] cannot link '{}': {}", place.string(), error.message()));
  }
}

void HubCache::write_ref(const std::string& revision, const std::string& commit)
    const {
  if (revision != commit)
    write_text_file(root_ / "refs" / revision, commit);
}

}  // namespace brigade

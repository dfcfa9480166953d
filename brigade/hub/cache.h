// The folders in which huggingface_hub keeps what it downloaded, so that the
// two share one cache:
//   models--ORG--NAME/refs/REVISION       the commit of a branch
//   models--ORG--NAME/snapshots/COMMIT/FILE -> ../../blobs/ETAG
//   models--ORG--NAME/blobs/ETAG          content; ETAG.incomplete: a part
//   .locks/models--ORG--NAME/ETAG.lock
// Private to brigade/hub.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace brigade {

class HubCache {
 public:
  // Precondition: is_hub_id(id).
  HubCache(std::filesystem::path cache_dir, const std::string& id);

  // The folder of a branch, tag or commit; std::nullopt when not there.
  std::optional<std::filesystem::path> snapshot(
      const std::string& revision) const;
  std::filesystem::path snapshot_of_commit(const std::string& commit) const;

  std::filesystem::path blob(const std::string& etag) const;
  std::filesystem::path lock(const std::string& etag) const;

  // Makes all folders. StorageError naming the one that cannot be made.
  void create_folders(const std::string& commit) const;
  // Makes snapshots/COMMIT/file point at a blob that is complete.
  void link(
      const std::string& commit,
      const std::string& file,
      const std::string& etag) const;
  void write_ref(const std::string& revision, const std::string& commit) const;

 private:
  std::filesystem::path root_;   // models--ORG--NAME
  std::filesystem::path locks_;  // .locks/models--ORG--NAME
};

}  // namespace brigade

// What the ranks of a supervisor are given: a private folder to meet in, and
// their environment.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "brigade/launch/supervisor.h"

namespace brigade {

// Only this user can read it; removed at the end.
class RankFolder {
 public:
  // Throws StorageError when it cannot be made.
  RankFolder();
  ~RankFolder();
  RankFolder(const RankFolder&) = delete;
  RankFolder& operator=(const RankFolder&) = delete;

  std::filesystem::path store_file() const { return path_ / "store"; }
  std::filesystem::path report_file(int rank) const;
  // All that ranks write in it.
  std::vector<std::filesystem::path> files(int nproc) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The environment of one rank as NAME=value.
std::vector<std::string> rank_environment(
    const SupervisorOptions& options,
    const RankFolder& folder,
    int rank);

}  // namespace brigade

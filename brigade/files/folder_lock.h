// One process at a time in a folder: FOLDER/lock, which says who holds it.
//
// The kernel's lock on that file decides between the processes of a host, and
// is released when its holder ends, however it ends. Between hosts it decides
// where the file system passes locks on. Where it does not, the holder's
// heartbeat does: it is written every `heartbeat`, and one that has stood still
// for `stale` is that of a dead holder. No clocks are compared.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "brigade/files/descriptor.h"

namespace brigade {

struct FolderLockOptions {
  std::chrono::milliseconds heartbeat{5000};
  // How long the heartbeat of another host must stand still before its lock
  // counts as left behind.
  std::chrono::milliseconds stale{20000};
  std::string host;  // empty: this machine's name
};

class FolderLock {
 public:
  // `folder` exists. `what` names it in errors: "the run folder". Throws
  // ConfigError that names host, process and start of the holder,
  // StorageError when the file cannot be written.
  FolderLock(
      const std::filesystem::path& folder,
      const std::string& what,
      const FolderLockOptions& options = {});
  // Removes the file.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  void acquire(const std::filesystem::path& folder, const std::string& what);
  // Throws ConfigError unless the holder named in the file is dead.
  void check_heartbeat(const std::string& folder, const std::string& what);
  std::string read_holder() const;
  void write_holder(int64_t beat);
  void beat();

  FolderLockOptions options_;
  std::filesystem::path path_;
  Descriptor descriptor_;
  std::string start_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace brigade

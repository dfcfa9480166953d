// Saves beside training: at most one at a time, on a thread of its own.
//
//   idle --start()--> writing --the thread ends--> done --wait()--> idle
//
// start() and wait() are called from the trainer's thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "brigade/checkpoint/save.h"
#include "brigade/comm/communicator.h"

namespace brigade {

struct SaveOutcome {
  std::filesystem::path directory;
  std::string failure;  // "": saved
  std::string said;     // by CheckpointToSave::after_commit
  double seconds = 0;   // from start() to the end
};

class BackgroundSave {
 public:
  BackgroundSave() = default;
  // Gives up a save under way: waits for this rank's own writing, not for
  // other ranks.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // Copies the tensors to memory that is kept for the next time, and returns
  // while they are written. Precondition: is_idle().
  void start(
      const std::filesystem::path& directory,
      CheckpointToSave checkpoint,
      SaveRanks ranks);
  // The same without the copies: the tensors must not change before wait().
  void start_without_copy(
      const std::filesystem::path& directory,
      CheckpointToSave checkpoint,
      SaveRanks ranks);

  bool is_idle() const { return !thread_.joinable(); }
  // Whether the save has ended by a failure that kept this rank from telling
  // the others, which still wait for it. wait() tells them.
  bool has_untold_failure();
  // The outcome, if the save has ended otherwise; does not block.
  std::optional<SaveOutcome> poll();
  // Collective over `world`: the outcome once all ranks have theirs;
  // std::nullopt where none was started. A failure that a rank could not tell
  // the others is all ranks' outcome. A rank that is lost meanwhile is a
  // CommError, since ranks keep in touch while they wait.
  std::optional<SaveOutcome> wait(Communicator& world);

 private:
  SaveOutcome take();

  std::thread thread_;
  std::atomic<bool> cancelled_ = false;
  PartSnapshot weights_;
  PartSnapshot optimizer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_done_ = false;  // guarded by mutex_
  // The thread's until is_done_.
  SaveOutcome outcome_;
  bool is_untold_ = false;
};

}  // namespace brigade

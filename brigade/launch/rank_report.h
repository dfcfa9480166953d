// What a rank tells its supervisor: the step it is at and, when it fails, why.
// A small file that both map, so that it outlives a rank killed with -9.
//
// The rank writes (from any one thread), the supervisor reads; but for
// set_run_failed().
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace brigade {

class RankReport {
 public:
  // An empty path (no supervisor listens): memory of this process alone.
  // Creates the file if it is not there. Throws StorageError.
  explicit RankReport(const std::filesystem::path& path);
  ~RankReport();
  RankReport(const RankReport&) = delete;
  RankReport& operator=(const RankReport&) = delete;

  bool is_read_by_supervisor() const { return is_read_by_supervisor_; }

  // One store to memory: cheap enough for every step.
  void set_step(int64_t step);
  int64_t step() const;  // the last one; -1: none was reported
  int64_t first_step() const;

  // When the step must have ended, in nanoseconds of CLOCK_MONOTONIC; 0: at no
  // time. The rank ends itself then: past it, it does not even run.
  void set_deadline(int64_t deadline_ns);
  int64_t deadline_ns() const;

  // This rank writes what it did last on SIGQUIT, which ends other programs.
  void set_handles_quit();
  bool handles_quit() const;

  // Written by the supervisor, before it asks for recordings of a failure: of
  // this rank or another one.
  void set_run_failed();
  bool has_run_failed() const;

  // A recording that SIGQUIT asked for is written; how many were.
  void count_recording();
  int64_t recordings() const;

  // The first failure stays; what does not fit is cut.
  void set_failure(std::string_view reason);
  std::string failure() const;  // "": none
  // CLOCK_MONOTONIC nanoseconds at which the failure was reported; 0: none.
  int64_t failed_ns() const;

 private:
  struct Contents;
  bool is_read_by_supervisor_;
  Contents* contents_;
};

}  // namespace brigade

#include "brigade/launch/rank_report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "brigade/base/error.h"
#include "brigade/files/descriptor.h"

namespace brigade {

// New memory is zeros: no step (steps are stored plus one), no failure.
struct RankReport::Contents {
  std::atomic<int64_t> step_plus_one;
  std::atomic<int64_t> first_step_plus_one;
  std::atomic<int64_t> deadline_ns;
  std::atomic<int64_t> handles_quit;
  std::atomic<int64_t> run_failed;
  std::atomic<int64_t> recordings;
  std::atomic<int64_t> failed_ns;  // written last: the reason is whole then
  int64_t reason_bytes;
  char reason[16384];
};

RankReport::RankReport(const std::filesystem::path& path)
    : is_read_by_supervisor_(!path.empty()) {
  static_assert(std::atomic<int64_t>::is_always_lock_free);
  const auto map = [](int flags, int file) {
    return ::mmap(
        nullptr, sizeof(Contents), PROT_READ | PROT_WRITE, flags, file, 0);
  };
  void* memory = MAP_FAILED;
  if (!is_read_by_supervisor_) {
    memory = map(MAP_PRIVATE | MAP_ANONYMOUS, -1);
  } else {
    const Descriptor file(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (file.is_open() && ::ftruncate(file.get(), sizeof(Contents)) == 0)
      memory = map(MAP_SHARED, file.get());
  }
  if (memory == MAP_FAILED) {
    throw StorageError(fmt::format(
        "[launch] cannot map the rank's report '{}': {}",
        path.string(),
        std::strerror(errno)));
  }
  contents_ = static_cast<Contents*>(memory);
}

RankReport::~RankReport() {
  ::munmap(contents_, sizeof(Contents));
}

void RankReport::set_step(int64_t step) {
  contents_->step_plus_one.store(step + 1, std::memory_order_relaxed);
  if (first_step() < 0)
    contents_->first_step_plus_one.store(step + 1, std::memory_order_relaxed);
}

int64_t RankReport::step() const {
  return contents_->step_plus_one.load(std::memory_order_relaxed) - 1;
}

int64_t RankReport::first_step() const {
  return contents_->first_step_plus_one.load(std::memory_order_relaxed) - 1;
}

void RankReport::set_deadline(int64_t deadline_ns) {
  contents_->deadline_ns.store(deadline_ns, std::memory_order_relaxed);
}

int64_t RankReport::deadline_ns() const {
  return contents_->deadline_ns.load(std::memory_order_relaxed);
}

void RankReport::set_handles_quit() {
  contents_->handles_quit.store(1, std::memory_order_relaxed);
}

bool RankReport::handles_quit() const {
  return contents_->handles_quit.load(std::memory_order_relaxed) != 0;
}

void RankReport::set_run_failed() {
  contents_->run_failed.store(1, std::memory_order_relaxed);
}

bool RankReport::has_run_failed() const {
  return contents_->run_failed.load(std::memory_order_relaxed) != 0;
}

void RankReport::count_recording() {
  contents_->recordings.fetch_add(1, std::memory_order_release);
}

int64_t RankReport::recordings() const {
  return contents_->recordings.load(std::memory_order_acquire);
}

void RankReport::set_failure(std::string_view reason) {
  if (failed_ns() != 0)
    return;
  const size_t count = std::min(reason.size(), sizeof(contents_->reason));
  std::memcpy(contents_->reason, reason.data(), count);
  contents_->reason_bytes = static_cast<int64_t>(count);
  contents_->failed_ns.store(
      std::chrono::steady_clock::now().time_since_epoch().count(),
      std::memory_order_release);
}

std::string RankReport::failure() const {
  if (failed_ns() == 0)
    return "";
  // The rank is another program and may have written anything.
  const auto count = std::clamp<int64_t>(
      contents_->reason_bytes, 0, sizeof(contents_->reason));
  return {contents_->reason, static_cast<size_t>(count)};
}

int64_t RankReport::failed_ns() const {
  return contents_->failed_ns.load(std::memory_order_acquire);
}

}  // namespace brigade

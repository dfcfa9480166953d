#include "brigade/comm/mpi/mpi_process.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/sequential_worker.h"

namespace brigade {
namespace {

using Clock = std::chrono::steady_clock;

// A waiting thread polls without pause for this long, then with short pauses:
// if threads compete for the processor, the kernel prefers those that sleep. A
// communicator's own thread shares the processor with one that computes.
constexpr std::chrono::microseconds kPatienceOfWaiter{300};
constexpr std::chrono::microseconds kPatienceInACrowd{20};
constexpr std::chrono::microseconds kPatienceOfWorker{50};
// The kernel makes about 60 us of it.
constexpr std::chrono::microseconds kPause{5};
constexpr std::chrono::microseconds kPauseUnattended{50};

constexpr std::chrono::seconds kCommonEnd{60};
constexpr std::chrono::seconds kCommonEndAfterFailure{2};

void check_thread_support(int provided, int needed) {
  if (provided >= needed)
    return;
  throw ConfigError(fmt::format(
      "[comm] this MPI was started with thread support {}, but {} is needed: "
      "call MPI_Init_thread() with MPI_THREAD_MULTIPLE, or leave it to Brigade",
      provided,
      needed));
}

// The error code of the first operation that failed.
int first_error(const std::vector<MPI_Status>& statuses) {
  for (const MPI_Status& status : statuses) {
    if (status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING)
      return status.MPI_ERROR;
  }
  return MPI_ERR_IN_STATUS;
}

// The process that end_if_started() ends.
std::atomic<MpiProcess*> started_process{nullptr};

}  // namespace

MpiProcessPtr MpiProcess::get() {
  // Destroyed when the process ends: MPI cannot be started a second time.
  static const MpiProcessPtr process(new MpiProcess);
  started_process = process.get();
  return process;
}

void MpiProcess::end_if_started() {
  if (MpiProcess* const process = started_process)
    process->end();
}

MpiProcess::MpiProcess() {
  int is_started = 0;
  check(MPI_Initialized(&is_started));
  int provided = 0;
  if (is_started != 0) {
    // The program may call MPI at the same time.
    check(MPI_Query_thread(&provided));
    check_thread_support(provided, MPI_THREAD_MULTIPLE);
  } else {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
    is_ours_ = true;
    check_thread_support(provided, MPI_THREAD_SERIALIZED);
  }
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
  check(MPI_Comm_size(MPI_COMM_WORLD, &size_));
  check(MPI_Comm_dup(MPI_COMM_WORLD, &control_));
  check(MPI_Comm_set_errhandler(control_, MPI_ERRORS_RETURN));
  MPI_Comm host = MPI_COMM_NULL;
  check(MPI_Comm_split_type(
      control_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host));
  int ranks_of_host = 1;
  check(MPI_Comm_size(host, &ranks_of_host));
  check(MPI_Comm_free(&host));
  is_crowded_ =
      ranks_of_host > static_cast<int>(std::thread::hardware_concurrency());
  int* largest_tag = nullptr;
  int is_known = 0;
  check(MPI_Comm_get_attr(
      MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&largest_tag), &is_known));
  largest_tag_ = is_known != 0 ? *largest_tag : 32767;
}

MpiProcess::~MpiProcess() {
  started_process = nullptr;
  end();
}

void MpiProcess::end() {
  if (std::exchange(has_ended_, true))
    return;
  {
    const std::lock_guard lock(state_mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable())
    thread_.join();
  if (is_ours_ && all_ranks_end())
    MPI_Finalize();
}

bool MpiProcess::all_ranks_end() {
  try {
    std::vector<MPI_Request> end(1, MPI_REQUEST_NULL);
    locked([&] { return MPI_Ibarrier(control_, end.data()); });
    wait(end, has_failed_ ? kCommonEndAfterFailure : kCommonEnd);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void MpiProcess::check(int code) {
  if (code == MPI_SUCCESS)
    return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw std::runtime_error(
      "MPI: " + std::string(text.data(), static_cast<size_t>(length)));
}

void MpiProcess::wait(
    std::vector<MPI_Request>& requests,
    std::chrono::milliseconds timeout,
    const std::function<void()>& look) {
  const auto begin = Clock::now();
  const auto patience = is_crowded_                         ? kPatienceInACrowd
                        : SequentialWorker::is_own_thread() ? kPatienceOfWorker
                                                            : kPatienceOfWaiter;
  std::vector<MPI_Status> statuses(requests.size());
  while (true) {
    int have_ended = 0;
    locked([&] {
      const int code = MPI_Testall(
          static_cast<int>(requests.size()),
          requests.data(),
          &have_ended,
          statuses.data());
      return code == MPI_ERR_IN_STATUS ? first_error(statuses) : code;
    });
    if (have_ended != 0)
      return;
    const auto waited = Clock::now() - begin;
    if (waited < patience) {
      std::this_thread::yield();
      continue;
    }
    if (look)
      look();
    if (waited >= timeout)
      throw std::runtime_error(fmt::format(
          "timed out after {} ms",
          std::chrono::duration_cast<std::chrono::milliseconds>(waited)
              .count()));
    std::this_thread::sleep_for(kPause);
  }
}

void MpiProcess::begin_unattended() {
  const std::lock_guard lock(state_mutex_);
  ++unattended_;
  if (!thread_.joinable())
    thread_ = std::thread([this] { run_unattended(); });
  changed_.notify_all();
}

void MpiProcess::end_unattended() {
  const std::lock_guard lock(state_mutex_);
  --unattended_;
}

void MpiProcess::run_unattended() {
  std::unique_lock lock(state_mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || unattended_ > 0; });
    if (stopping_)
      return;
    lock.unlock();
    try {
      // Any call makes MPI progress all operations under way.
      int is_there = 0;
      locked([&] {
        return MPI_Iprobe(
            MPI_ANY_SOURCE,
            MPI_ANY_TAG,
            MPI_COMM_SELF,
            &is_there,
            MPI_STATUS_IGNORE);
      });
    } catch (const std::exception&) {
      // The thread that waits for the operation sees the error.
    }
    std::this_thread::sleep_for(kPauseUnattended);
    lock.lock();
  }
}

void MpiProcess::abandon(std::vector<torch::Tensor> tensors) {
  const std::lock_guard lock(mutex_);
  for (torch::Tensor& tensor : tensors)
    abandoned_.push_back(std::move(tensor));
}

void MpiProcess::set_failed() {
  const std::lock_guard lock(state_mutex_);
  has_failed_ = true;
}

}  // namespace brigade

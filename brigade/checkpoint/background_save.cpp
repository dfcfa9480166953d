#include "brigade/checkpoint/background_save.h"

#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/comm/device_stream.h"

namespace brigade {

BackgroundSave::~BackgroundSave() {
  if (!thread_.joinable())
    return;
  cancelled_ = true;
  thread_.join();
}

void BackgroundSave::start(
    const std::filesystem::path& directory,
    CheckpointToSave checkpoint,
    SaveRanks ranks) {
  checkpoint.weights = weights_.copy(checkpoint.weights);
  checkpoint.optimizer = optimizer_.copy(checkpoint.optimizer);
  start_without_copy(directory, std::move(checkpoint), std::move(ranks));
}

void BackgroundSave::start_without_copy(
    const std::filesystem::path& directory,
    CheckpointToSave checkpoint,
    SaveRanks ranks) {
  BRIGADE_ASSERT(is_idle(), "a save is under way");
  ranks.cancelled = &cancelled_;
  outcome_ = {.directory = directory};
  is_done_ = false;
  const auto begin = std::chrono::steady_clock::now();
  const torch::Device device = checkpoint.weights.empty()
                                   ? torch::kCPU
                                   : checkpoint.weights.front().tensor.device();
  thread_ = std::thread([this,
                         begin,
                         device,
                         written = StreamMark::of_current_stream(device),
                         ranks = std::move(ranks),
                         checkpoint = std::move(checkpoint)]() mutable {
    try {
      use_device(device);
      written.wait();
      outcome_.said =
          save_checkpoint(outcome_.directory, std::move(checkpoint), ranks);
    } catch (const std::exception& error) {
      outcome_.failure = error.what();
    }
    outcome_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count();
    const std::lock_guard lock(mutex_);
    is_done_ = true;
    changed_.notify_all();
  });
}

SaveOutcome BackgroundSave::take() {
  thread_.join();
  return std::move(outcome_);
}

std::optional<SaveOutcome> BackgroundSave::poll() {
  if (is_idle())
    return std::nullopt;
  {
    const std::lock_guard lock(mutex_);
    if (!is_done_)
      return std::nullopt;
  }
  return take();
}

std::optional<SaveOutcome> BackgroundSave::wait(Communicator& world) {
  // Where poll() took it, others may still wait.
  auto left = torch::empty({1}, torch::kLong);
  std::chrono::milliseconds pause{0};
  constexpr std::chrono::milliseconds kLongestPause{500};
  do {
    {
      std::unique_lock lock(mutex_);
      const bool is_over =
          is_idle() || changed_.wait_for(lock, pause, [&] { return is_done_; });
      left.fill_(is_over ? 0 : 1);
    }
    pause = std::min(2 * pause + std::chrono::milliseconds(5), kLongestPause);
    world.all_reduce(left)->wait();
  } while (left.item<int64_t>() > 0);
  if (is_idle())
    return std::nullopt;
  return take();
}

}  // namespace brigade

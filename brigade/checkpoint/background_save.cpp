#include "brigade/checkpoint/background_save.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
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
  is_done_ = is_untold_ = false;
  cancelled_ = false;
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
    } catch (const StorageError& error) {
      outcome_.failure = error.what();
    } catch (const std::exception& error) {
      outcome_.failure = error.what();
      is_untold_ = true;
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

bool BackgroundSave::has_untold_failure() {
  const std::lock_guard lock(mutex_);
  return !is_idle() && is_done_ && is_untold_;
}

std::optional<SaveOutcome> BackgroundSave::poll() {
  if (is_idle())
    return std::nullopt;
  {
    const std::lock_guard lock(mutex_);
    if (!is_done_ || is_untold_)
      return std::nullopt;
  }
  return take();
}

std::optional<SaveOutcome> BackgroundSave::wait(Communicator& world) {
  // Where poll() took it, others may still wait.
  const Agreement ranks(world);
  std::string untold;
  std::vector<int64_t> any;  // whether one still saves; has a failure to tell
  std::chrono::milliseconds pause{0};
  constexpr std::chrono::milliseconds kLongestPause{500};
  do {
    bool is_over = is_idle();
    if (!is_over) {
      std::unique_lock lock(mutex_);
      is_over = changed_.wait_for(lock, pause, [&] { return is_done_; });
      if (is_over && is_untold_)
        untold = outcome_.failure;
    }
    pause = std::min(2 * pause + std::chrono::milliseconds(5), kLongestPause);
    any = ranks.max({is_over ? 0 : 1, untold.empty() ? 0 : 1});
    if (any[1] != 0)
      cancelled_ = true;  // nobody else's note comes
  } while (any[0] != 0);
  const auto texts =
      any[1] == 0 ? std::vector<std::string>{} : ranks.texts(untold);
  if (is_idle())
    return std::nullopt;
  SaveOutcome outcome = take();
  const auto teller = std::ranges::find_if(
      texts, [](const std::string& text) { return !text.empty(); });
  if (teller != texts.end())
    outcome.failure =
        fmt::format("rank {}: {}", teller - texts.begin(), *teller);
  return outcome;
}

}  // namespace brigade

#include "brigade/train/run_saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/metrics/run_folder.h"
#include "brigade/run/checkpoint_folder.h"
#include "brigade/run/resume_check.h"

namespace brigade {
namespace {

std::string new_run_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

}  // namespace

RunSaver::RunSaver(
    const TrainConfig& config,
    const ProcessMesh& mesh,
    TrainStep& step,
    const TrainingData& data,
    RunObserver& observer)
    : config_(config),
      mesh_(mesh),
      step_(step),
      data_(describe_data(config, data)),
      observer_(observer),
      last_start_ns_(steady_now_ns()) {}

void RunSaver::begin_run(const std::string& continued_run, int64_t saved_step) {
  run_ = Agreement(*mesh_.world())
             .text_of(0, continued_run.empty() ? new_run_id() : continued_run);
  saved_step_ = started_step_ = saved_step;
}

bool RunSaver::is_due(int64_t step) const {
  const int64_t frequency = config_.checkpoint.save_frequency;
  return frequency > 0 && step % frequency == 0;
}

bool RunSaver::asks_for_save() const {
  const int64_t seconds = config_.checkpoint.save_seconds;
  return mesh_.rank() == 0 && seconds > 0 &&
         steady_now_ns() - last_start_ns_ >= seconds * 1'000'000'000;
}

void RunSaver::start(const RunPosition& position, Copy copy) {
  const auto folder = checkpoint_folder(config_);
  const int64_t step = position.steps;
  CheckpointToSave checkpoint =
      checkpoint_of(config_, mesh_, step_, data_, position, run_);
  const Retention retention{
      config_.checkpoint.keep_last, config_.checkpoint.keep_every};
  checkpoint.after_commit = [folder, step, retention]() -> std::string {
    note_latest(folder, step);
    // This checkpoint is whole whatever becomes of the older ones.
    try {
      prune_checkpoints(folder, retention, step);
    } catch (const StorageError& error) {
      return error.what();
    }
    return "";
  };
  SaveRanks ranks;
  ranks.rank = mesh_.rank();
  ranks.world_size = mesh_.world()->size();
  ranks.writer = mesh_.rank();
  ranks.store = mesh_.store();
  ranks.save_key = fmt::format("save-{}", ++saves_);
  started_step_ = step;
  last_start_ns_ = steady_now_ns();
  const auto directory = folder / std::to_string(step);
  if (copy == Copy::kYes)
    background_.start(directory, std::move(checkpoint), std::move(ranks));
  else
    background_.start_without_copy(
        directory, std::move(checkpoint), std::move(ranks));
}

void RunSaver::take_note(const SaveOutcome& outcome) {
  last_failure_ = outcome.failure;
  if (!outcome.failure.empty()) {
    observer_.on_message(fmt::format(
        "could NOT save {}: {}", outcome.directory.string(), outcome.failure));
    return;
  }
  if (kill_grace_ && outcome.seconds > kill_grace_->seconds) {
    observer_.on_message(fmt::format(
        "a save took {:.1f} s, but mpirun kills ranks {:g} s after SIGTERM: "
        "one that SIGTERM asks for would not end, though the one before it "
        "stays valid; {}",
        outcome.seconds,
        kill_grace_->seconds,
        kill_grace_->can_grow
            ? fmt::format(
                  "start with mpirun --mca odls_base_sigkill_timeout {:.0f}",
                  std::max(10.0, std::ceil(4 * outcome.seconds)))
            : "send SIGTERM to a rank, not to mpirun, which since Open MPI 5 "
              "waits no longer"));
    kill_grace_.reset();
  }
  longest_seconds_ = std::max(longest_seconds_, outcome.seconds);
  saved_step_ = started_step_;
  observer_.on_checkpoint(outcome.directory);
  if (!outcome.said.empty())
    observer_.on_message(fmt::format(
        "saved {}, but an older checkpoint stays: {}",
        outcome.directory.string(),
        outcome.said));
}

void RunSaver::poll() {
  if (const auto outcome = background_.poll())
    take_note(*outcome);
}

void RunSaver::wait() {
  if (const auto outcome = background_.wait(*mesh_.world()))
    take_note(*outcome);
}

void RunSaver::save(const RunPosition& position) {
  wait();
  if (config_.checkpoint.async) {
    start(position, Copy::kYes);
  } else {
    start(position, Copy::kNo);
    wait();
  }
}

void RunSaver::save_last(const RunPosition& position) {
  wait();
  // A rank that did not learn of the last save's success saves with all others.
  if (Agreement(*mesh_.world()).min(saved_step_) == position.steps)
    return;
  start(position, Copy::kNo);
  wait();
  if (!last_failure_.empty())
    throw StorageError(last_failure_);
}

}  // namespace brigade

// How much longer a step takes while a save writes to a slow disk.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "bench/program_runs.h"

namespace brigade::bench {

constexpr int kDiskRanks = 2;
constexpr int kDiskBytesPerSecond = 1'000'000;  // of each rank
constexpr int kStepsBeforeSave = 100;
constexpr int kStepsOfDisk = 190;

// Two ranks train a model of 0.8 million parameters, whose save takes seconds.
// The median step beside the save over the median step before it, of one run.
// Throws DataError when the save ended before the steps did.
inline double step_beside_save_over_step(const ProgramRuns& runs) {
  runs.train(
      kDiskRanks,
      {fmt::format("training.total_train_steps={}", kStepsOfDisk),
       fmt::format("checkpoint.save_frequency={}", kStepsBeforeSave)});
  const std::vector<double> ms = runs.step_ms();
  constexpr int kToWarmUp = 10;
  // The step that ends with the start of the save is of neither.
  const auto save = ms.begin() + kStepsBeforeSave;
  const double seconds = std::accumulate(save, ms.end(), 0.0) / 1e3;
  double bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(
           runs.folder() / "checkpoints" / std::to_string(kStepsBeforeSave)))
    bytes += static_cast<double>(file.file_size());
  if (seconds * kDiskRanks * kDiskBytesPerSecond > bytes)
    throw DataError("[bench] the save ended before the steps beside it did");
  return median({save, ms.end()}) / median({ms.begin() + kToWarmUp, save - 1});
}

inline void print_step_beside_save(const std::filesystem::path& directory) {
  const std::filesystem::path preload =
      BRIGADE_BINARY_DIR "/tests/libprogram_faults.so";
  if (!std::filesystem::exists(preload)) {
    fmt::print("steps beside a save: not measured, as no tests are built\n");
    return;
  }
  const std::filesystem::path folder = directory / "bench_slow_disk";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  ProgramRuns runs(folder);
  nlohmann::json config = run_config(
      folder,
      {{"architectures", {"LlamaForCausalLM"}},
       {"model_type", "llama"},
       {"vocab_size", 259},
       {"hidden_size", 128},
       {"intermediate_size", 384},
       {"num_hidden_layers", 4},
       {"num_attention_heads", 4},
       {"num_key_value_heads", 4},
       {"max_position_embeddings", 64},
       {"rms_norm_eps", 1e-5}},
      {{"seq_length", 48}, {"micro_batch_size", 8}});
  config["distributed"] = {{"dp_size", kDiskRanks}, {"use_cpu", true}};
  runs.set_config(config);
  runs.set_environment(
      {{"LD_PRELOAD", preload.string()},
       {"BRIGADE_TEST_SLOW_DISK",
        fmt::format("/checkpoints/:{}", kDiskBytesPerSecond)}});
  std::vector<double> ratios;
  for (int i = 0; i < 3; ++i)
    ratios.push_back(step_beside_save_over_step(runs));
  std::filesystem::remove_all(folder);
  fmt::print(
      "a step beside a save to a disk of 1 MB/s per rank, over one before it\n"
      "  {:.2f}   of {:.2f} (at most 1.1)\n",
      median(ratios),
      fmt::join(ratios, ", "));
}

}  // namespace brigade::bench

// What does a checkpoint cost: a synchronous save against the disk's own rate,
// the pause of an asynchronous one against a plain copy, and a step beside one
// to a slow disk? And what does it cost per step to watch a run
// (bench/watching.h)?
//
//   build/release/bench_checkpoint [DIRECTORY] [MIB]     # default /tmp, 512
//
// All figures are medians of one run, so that their ratios hold on any machine.
#include <fmt/format.h>
#include <torch/types.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <vector>

#include "bench/arguments.h"
#include "bench/slow_disk.h"
#include "bench/watching.h"
#include "brigade/base/error.h"
#include "brigade/checkpoint/background_save.h"
#include "brigade/checkpoint/verify.h"
#include "brigade/comm/self_communicator.h"
#include "brigade/metrics/clock.h"

namespace brigade::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kRuns = 5;
constexpr int64_t kTensors = 32;

double seconds_of(const std::function<void()>& work) {
  const int64_t begin_ns = steady_now_ns();
  work();
  return static_cast<double>(steady_now_ns() - begin_ns) / 1e9;
}

CheckpointToSave checkpoint_over(const std::vector<torch::Tensor>& tensors) {
  CheckpointToSave checkpoint;
  checkpoint.manifest.dtype = "float32";
  checkpoint.manifest.run = "bench";
  for (size_t i = 0; i < tensors.size(); ++i)
    checkpoint.optimizer.push_back(
        {.name = fmt::format("exp_avg.{}", i), .tensor = tensors[i]});
  return checkpoint;
}

// As any program would: without hashing or anything of ours.
void write_plainly(
    const fs::path& path,
    const std::vector<torch::Tensor>& tensors) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  bool is_written = file != nullptr;
  for (const torch::Tensor& tensor : tensors)
    is_written = is_written &&
                 std::fwrite(tensor.data_ptr(), 1, tensor.nbytes(), file) ==
                     tensor.nbytes();
  is_written = is_written && std::fflush(file) == 0;
  is_written = is_written && ::fsync(::fileno(file)) == 0;
  if (file != nullptr)
    std::fclose(file);
  if (!is_written)
    throw StorageError("[bench] cannot write " + path.string());
}

// Seconds of each run.
struct Times {
  std::vector<double> disk;
  std::vector<double> save;
  std::vector<double> copy;
  std::vector<double> pause;
  std::vector<double> verify;
};

Times measure_saves(const fs::path& folder, int mib) {
  const int64_t numel = int64_t{mib} * 1048576 / 4 / kTensors;
  std::vector<torch::Tensor> tensors;
  std::vector<torch::Tensor> copies;
  for (int64_t i = 0; i < kTensors; ++i) {
    tensors.push_back(torch::rand({numel}));
    copies.push_back(torch::zeros({numel}));
  }

  Times times;
  const auto world = make_self_communicator();
  BackgroundSave background;
  // Both run in turn, so that a disk that grows slower does so for both. The
  // first round of the asynchronous save allocates its memory and does not
  // count.
  for (int i = 0; i <= kRuns; ++i) {
    const double raw =
        seconds_of([&] { write_plainly(folder / "raw", tensors); });
    fs::remove(folder / "raw");
    const double synchronous = seconds_of([&] {
      save_checkpoint(folder / "1", checkpoint_over(tensors), SaveRanks{});
    });
    const double hashed = seconds_of([&] {
      if (!find_reason_to_reject(folder / "1", VerifyLevel::kFull).empty())
        fmt::print("the checkpoint is NOT VALID\n");
    });
    fs::remove_all(folder / "1");
    const double copied = seconds_of([&] {
      for (size_t t = 0; t < tensors.size(); ++t)
        std::memcpy(
            copies[t].data_ptr(), tensors[t].data_ptr(), tensors[t].nbytes());
    });
    const double paused = seconds_of([&] {
      background.start(folder / "2", checkpoint_over(tensors), SaveRanks{});
    });
    background.wait(*world);
    fs::remove_all(folder / "2");
    if (i == 0)
      continue;
    times.disk.push_back(raw);
    times.save.push_back(synchronous);
    times.verify.push_back(hashed);
    times.copy.push_back(copied);
    times.pause.push_back(paused);
  }
  return times;
}

int run(int argc, char** argv) {
  const fs::path directory = argc > 1 ? argv[1] : "/tmp";
  const int mib = argc > 2 ? positive_number("MIB", argv[2]) : 512;
  const fs::path folder = directory / fmt::format("bench_checkpoint_{}", mib);
  fs::create_directories(folder);
  const double bytes = mib * 1048576.0;
  const Times times = measure_saves(folder, mib);
  fs::remove_all(folder);
  const auto rate = [&](const std::vector<double>& seconds) {
    return bytes / median(seconds) / 1e6;
  };
  fmt::print(
      "{} MiB in {} tensors, on '{}'\n"
      "  one file, written and synced  {:8.0f} MB/s\n"
      "  synchronous save              {:8.0f} MB/s   {:.2f} of the disk's "
      "(at least 0.8)\n"
      "  verification of all files     {:8.0f} MB/s\n"
      "  memcpy                        {:8.1f} ms\n"
      "  pause of an asynchronous save {:8.1f} ms     {:.2f} of the memcpy (at "
      "most 1.5)\n",
      mib,
      kTensors,
      directory.string(),
      rate(times.disk),
      rate(times.save),
      rate(times.save) / rate(times.disk),
      rate(times.verify),
      median(times.copy) * 1e3,
      median(times.pause) * 1e3,
      median(times.pause) / median(times.copy));
  print_step_beside_save(directory);
  print_cost_of_watching(directory);
  return 0;
}

}  // namespace
}  // namespace brigade::bench

int main(int argc, char** argv) {
  return brigade::bench::exit_code_of(
      [&] { return brigade::bench::run(argc, argv); });
}

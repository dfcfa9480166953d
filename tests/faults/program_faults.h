// Faults inside the program's own processes, by preload/program_faults.cpp, and
// checks of the files that such a run leaves.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "brigade/checkpoint/verify.h"
#include "brigade/run/checkpoint_folder.h"
#include "tests/support/program.h"
#include "tests/support/ranks_of_program.h"

namespace brigade::testing {

using Variables = std::map<std::string, std::string>;

// A sanitizer must be a process's first library.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kCanPreload = false;
#else
inline constexpr bool kCanPreload = true;
#endif

// Writes below paths that contain `path_part` are slow, separately in each
// process.
inline Variables slow_disk(
    const std::string& path_part,
    int64_t bytes_per_second) {
  return {
      {"LD_PRELOAD", BRIGADE_PROGRAM_FAULTS},
      {"BRIGADE_TEST_SLOW_DISK",
       fmt::format("{}:{}", path_part, bytes_per_second)}};
}

// Writes below paths that contain `path_part` wait while `gate` exists.
inline Variables held_disk(
    const std::string& path_part,
    const std::filesystem::path& gate) {
  return {
      {"LD_PRELOAD", BRIGADE_PROGRAM_FAULTS},
      {"BRIGADE_TEST_HELD_DISK",
       fmt::format("{}:{}", path_part, gate.string())}};
}

// The rank fails in its `step`-th step since its start. `how`: throw, exit
// (with code 7), abort, fault (SIGSEGV), spin or block.
inline Variables failing_rank(int rank, int step, const std::string& how) {
  return {
      {"LD_PRELOAD", BRIGADE_PROGRAM_FAULTS},
      {"BRIGADE_TEST_FAILURE", fmt::format("{}:{}:{}", rank, step, how)}};
}

// After that many steps since its start, each rank waits in the middle of the
// next one while `gate` exists. Creates `gate`.
inline Variables held_ranks(int steps, const std::filesystem::path& gate) {
  write_file(gate, std::to_string(steps));
  return {
      {"LD_PRELOAD", BRIGADE_PROGRAM_FAULTS},
      {"BRIGADE_TEST_HELD_STEPS", gate.string()}};
}

// brigade-torch gets the signal while it loads its libraries.
inline Variables signal_while_loading(int number) {
  return {
      {"LD_PRELOAD", BRIGADE_PROGRAM_FAULTS},
      {"BRIGADE_TEST_SIGNAL_WHILE_LOADING", std::to_string(number)}};
}

inline void expect_only_valid_checkpoints(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder))
    return;
  for (const CheckpointEntry& entry : list_checkpoints(folder))
    EXPECT_EQ(find_reason_to_reject(entry.directory, VerifyLevel::kFull), "");
}

inline void expect_no_rank_of(pid_t supervisor, int nproc) {
  for (int rank = 0; rank < nproc; ++rank)
    EXPECT_EQ(find_rank(supervisor, rank), -1);
}

// Weights and moments of a checkpoint, whatever layout wrote it.
inline std::string all_tensor_bytes(const std::filesystem::path& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    if (entry.path().extension() == ".safetensors")
      files[entry.path().filename()] = tensor_bytes(entry.path());
  }
  std::string bytes;
  for (const auto& [name, tensors] : files)
    bytes += name + tensors;
  EXPECT_FALSE(bytes.empty());
  return bytes;
}

}  // namespace brigade::testing

// What this machine, this build and this process are, as a person would ask
// for it when something is wrong.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace brigade {

struct MachineFact {
  std::string name;
  std::string value;
  std::string advice;  // what to do about it; "": nothing is wrong
};

// Processor, instructions of the kernels, memory, libtorch, BLAS, oneDNN, GPUs.
std::vector<MachineFact> machine_facts();

// Bytes per second at which the folder's disk takes a file, its sync included.
// Throws StorageError.
double disk_bytes_per_s(const std::filesystem::path& folder, int64_t bytes);

}  // namespace brigade

// A list of tensors on the terminal: how much there is in all, then one line
// for those that differ only in the number of their layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace brigade::cli {

struct ListedTensor {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  uint64_t numel = 0;
  uint64_t size_bytes = 0;
};

// list_all: a line for each tensor.
void print_tensors(const std::vector<ListedTensor>& tensors, bool list_all);

}  // namespace brigade::cli

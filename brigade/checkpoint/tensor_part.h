// One rank's part of a tensor, on its way into or out of a checkpoint.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "brigade/model_spec/shard.h"

namespace brigade {

// `slice` of the whole tensor of that name. `tensor` may be longer along it
// (padding, which is not stored).
struct TensorPart {
  std::string name;
  Slice slice;
  torch::Tensor tensor;  // contiguous, float32, bf16 or codes, any device
  // Defined: `tensor` (bf16) and this (int16) are the halves of a float32
  // master (ops/split_master.h), which is what the file has. In memory it is
  // whole only while this part is read or written.
  torch::Tensor master_low = {};
  // Defined: `tensor` are codes of blocks, and these are their scales
  // (ops/block_codes.h); the file has both.
  torch::Tensor scales = {};
};

// A part that is codes is two tensors in the file: its name behind each of
// these prefixes.
inline constexpr const char* kCodesPrefix = "codes.";
inline constexpr const char* kScalesPrefix = "scales.";

// Without padding; a view.
torch::Tensor without_padding(
    const TensorPart& part,
    const torch::Tensor& tensor);
// Those of blocks that are not padding alone.
torch::Tensor stored_scales(const TensorPart& part);

// Copies of parts in the host's memory, which is kept from one call to the
// next, so that only the first call has new pages to touch. It is page-locked
// for what comes from a GPU.
class PartSnapshot {
 public:
  // The same parts over copies of their tensors, there when the call returns,
  // which the next call overwrites. Padding is left out.
  std::vector<TensorPart> copy(const std::vector<TensorPart>& parts);

 private:
  torch::Tensor copy_tensor(const torch::Tensor& source);

  std::vector<torch::Tensor> memory_;
  size_t next_ = 0;
};

}  // namespace brigade

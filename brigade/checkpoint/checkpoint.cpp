#include "brigade/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "brigade/base/error.h"
#include "brigade/checkpoint/torch_dtype.h"
#include "brigade/ops/block_codes.h"
#include "brigade/ops/split_master.h"
#include "brigade/param/param.h"

namespace brigade {

torch::Tensor Checkpoint::values_of(const Piece& piece) {
  return piece.scales == nullptr
             ? as_tensor(*piece.stored)
             : ops::recodable_values(
                   as_codes(*piece.stored), as_tensor(*piece.scales));
}

torch::Tensor Checkpoint::read_whole(const std::string& name) const {
  const auto& pieces = pieces_of(name);
  const int dim = pieces.front().slice.dim;
  if (dim == kNotCut)
    return values_of(pieces.front()).clone();
  std::vector<torch::Tensor> tensors;
  int64_t position = 0;
  for (const Piece& piece : pieces) {
    if (piece.slice.begin != position) {
      throw DataError(fmt::format(
          "[checkpoint] tensor '{}' in '{}' lacks [{}, {}) along dim {}",
          name,
          directory().string(),
          position,
          piece.slice.begin,
          dim));
    }
    position = piece.slice.end;
    tensors.push_back(values_of(piece));
  }
  return torch::cat(tensors, dim);
}

void Checkpoint::read(const State& part) const {
  const torch::NoGradGuard no_grad;
  auto values = read_whole(part.name);
  const bool is_made = part.master_low.defined() || part.scales.defined();
  const auto target =
      is_made ? torch::empty_like(part.tensor, torch::kFloat) : part.tensor;
  const Slice& slice = part.slice;
  if (slice.dim != kNotCut && values.dim() == target.dim() &&
      values.size(slice.dim) >= slice.end)
    values = take_shard(values, slice, target.sizes());
  if (target.sizes() != values.sizes()) {
    throw DataError(fmt::format(
        "[checkpoint] tensor '{}' in '{}' has shape [{}], but the model needs "
        "[{}]; load it with the model that it was saved from",
        part.name,
        directory().string(),
        fmt::join(values.sizes(), ", "),
        fmt::join(target.sizes(), ", ")));
  }
  target.copy_(values);
  if (part.master_low.defined())
    ops::split_master(target, part.tensor, part.master_low);
  if (part.scales.defined())
    ops::encode_blocks(target, part.tensor, part.scales);
}

}  // namespace brigade

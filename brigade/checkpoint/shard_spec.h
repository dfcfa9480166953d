// Which part of a whole tensor a rank holds: a range of each dim. Pure
// arithmetic; the tensors themselves never come here.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace brigade {

// [begin, end) of one dim.
struct DimRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t numel() const { return end - begin; }
  bool operator==(const DimRange&) const = default;
};

// The part of a tensor of shape `full_shape` within all of `ranges`.
// Invariant: one range a dim, each inside it; an empty range is allowed.
struct ShardSpec {
  std::vector<int64_t> full_shape;
  std::vector<DimRange> ranges;

  std::vector<int64_t> shape() const;  // of the part
  int64_t numel() const;
  bool operator==(const ShardSpec&) const = default;
};

ShardSpec whole_tensor(std::vector<int64_t> full_shape);

// "[0:4, 2:6] of [8, 6]", for messages.
std::string to_string(const ShardSpec& spec);

// Calls `run` for every contiguous run
// of the part, in row-major order; offsets in elements, of the whole tensor and
// of the part. A part of whole rows is a single run.
using CopyRun = std::function<
    void(int64_t source_offset, int64_t destination_offset, int64_t numel)>;
void for_each_run(const ShardSpec& spec, const CopyRun& run);

}  // namespace brigade

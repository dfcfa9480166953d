// The process grid: how many ranks lie along each axis and which rank stands
// where. Ranks are numbered in picotron's order (dp, pp, cp, tp), tp fastest:
//   rank = ((dp_coordinate * pp + pp_coordinate) * cp + cp_coordinate) * tp
//          + tp_coordinate
// so that tensor parallel, which talks most, gets neighbouring ranks, and the
// replicas of data parallel, which communicate once per step, are furthest
// apart.
//
// PURE: sizes in, tables out.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace brigade {

// In the order of the grid, slowest first.
enum class Axis { kDp, kPp, kCp, kTp };
inline constexpr std::array<Axis, 4> kAxes = {
    Axis::kDp,
    Axis::kPp,
    Axis::kCp,
    Axis::kTp};
const char* to_string(Axis axis);  // "dp", "pp", "cp", "tp"

// The position of a rank on each axis.
struct Coordinate {
  int dp = 0;
  int tp = 0;
  int pp = 0;
  int cp = 0;
  int operator[](Axis axis) const;  // from 0 to the axis's size - 1
  bool operator==(const Coordinate&) const = default;
};

// Sizes of the four axes. Everything but validate() expects sizes that
// validate() accepted.
struct ParallelDims {
  int dp = 1;
  int tp = 1;
  int pp = 1;
  int cp = 1;

  int operator[](Axis axis) const;  // the size of an axis
  int world_size() const { return dp * pp * cp * tp; }
  bool operator==(const ParallelDims&) const = default;

  // Adds one message for each size below 1, or one when the product is not
  // world_size:
  //   [parallel_dims] dp 2 * pp 2 * cp 1 * tp 3 = 12, but world size is 8
  void validate(int world_size, std::vector<std::string>& problems) const;

  // rank: from 0 to world_size() - 1.
  Coordinate coordinate(int rank) const;
  // "dp 1, tp 0": the coordinates along axes of several ranks, for messages.
  std::string describe_coordinate(int rank) const;
  // The inverse of coordinate().
  int rank(const Coordinate& coordinate) const;

  // The ranks that differ from `rank` along `axis` alone, in the order of
  // their coordinates; `rank` is among them.
  std::vector<int> members(Axis axis, int rank) const;
  // The dp x cp group through `rank`, which sums gradients (also when dp = 1:
  // the ranks of cp see different tokens of one sequence). Ascending.
  std::vector<int> dp_cp_members(int rank) const;
  // Every group of an axis, in the order of their lowest rank; together they
  // hold each rank once. All ranks build groups in this order.
  std::vector<std::vector<int>> groups(Axis axis) const;
  std::vector<std::vector<int>> dp_cp_groups() const;

  // "dp 2 * pp 2 * cp 1 * tp 2"
  std::string product() const;
  // The grid, one line per rank.
  std::string table() const;
};

}  // namespace brigade

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
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace brigade {

// A new axis is a value here, a place in kAxes, kNamedAxes and the lists below
// whose sentence is true of it, a member of Coordinate and of ParallelDims, and
// a row of the table in the source. Config keys, options, groups, batches, the
// planner, reports and files walk these lists.
enum class Axis { kDp, kTp, kPp, kCp };
// The axes in the order in which people name them.
inline constexpr std::array<Axis, 4> kNamedAxes = {
    Axis::kDp,
    Axis::kTp,
    Axis::kPp,
    Axis::kCp};
// The axes in the order of the grid, slowest first.
inline constexpr std::array<Axis, 4> kAxes = {
    Axis::kDp,
    Axis::kPp,
    Axis::kCp,
    Axis::kTp};
const char* to_string(Axis axis);    // "tp"
const char* meaning_of(Axis axis);   // "tensor parallel"
std::string size_key_of(Axis axis);  // "tp_size", a key of `distributed`

// The axes along which the replicas of a weight lie, whose gradients are
// summed: dp, and cp, whose ranks see different tokens of one sequence.
inline const std::vector<Axis> kReplicaAxes = {Axis::kDp, Axis::kCp};
// The axes whose ranks draw samples of their own.
inline const std::vector<Axis> kBatchAxes = {Axis::kDp};
// The axes whose ranks hold parts of one sequence: sequence_partition.h.
inline const std::vector<Axis> kSequenceAxes = {Axis::kCp};
// The axes along which one replica of the model is cut.
inline const std::vector<Axis> kModelAxes = {Axis::kPp, Axis::kTp};
// The axes whose groups communicate in every layer.
inline const std::vector<Axis> kLayerAxes = {Axis::kTp, Axis::kCp};
std::string names_of(const std::vector<Axis>& axes);  // "dp x cp"

// The position of a rank on each axis.
struct Coordinate {
  int dp = 0;
  int tp = 0;
  int pp = 0;
  int cp = 0;
  // From 0 to the axis's size - 1.
  int& operator[](Axis axis);
  int operator[](Axis axis) const;  // the same
  // The positions in the order of the grid.
  std::vector<int> values() const;
  // The colour of the ranks that hold the same part of the model, with `more`
  // behind it.
  std::vector<int> part_colour(std::initializer_list<int> more) const;
  // Whether it stands for its stage: one rank of those which cut it does.
  bool leads_stage() const;
  bool operator==(const Coordinate&) const = default;
};

// Ranks of one colour form a group: where two coordinates have the same colour,
// their ranks are in one.
using Colour = std::function<std::vector<int>(const Coordinate& at)>;
// The colour of the ranks that differ along these axes alone: the coordinates
// on all others.
Colour along_axes(const std::vector<Axis>& along);

// Sizes of the axes. Everything but validate() expects sizes that
// validate() accepted.
struct ParallelDims {
  int dp = 1;
  int tp = 1;
  int pp = 1;
  int cp = 1;
  // Expert parallel: experts are divided among so many neighbours of the
  // replicas. It takes its ranks from dp x cp and is no axis of the grid.
  int ep = 1;

  // The size of an axis.
  int& operator[](Axis axis);
  // The size of an axis.
  int operator[](Axis axis) const;
  int world_size() const;
  // As world_size(), of sizes that nobody checked: they may be beyond an int.
  double rank_count() const;
  // The ranks along these axes together.
  int size(const std::vector<Axis>& along) const;
  // Which of them a rank is, the last axis fastest.
  int place(const std::vector<Axis>& along, const Coordinate& at) const;
  // The ranks that have the same weights.
  int replicas() const { return size(kReplicaAxes); }
  // The parts that a step's batch is divided into.
  int batch_parts() const { return size(kBatchAxes); }
  // The parts that a sequence is divided into.
  int sequence_parts() const { return size(kSequenceAxes); }
  bool operator==(const ParallelDims&) const = default;

  // Which of the replicas a rank is, cp fastest.
  int replica(const Coordinate& at) const { return place(kReplicaAxes, at); }
  // Which of the ep parts of the experts it holds.
  int expert_rank(const Coordinate& at) const { return replica(at) % ep; }
  // Ranks among which one set of all experts is divided.
  Colour expert_parallel() const;
  // Ranks that hold the same experts.
  Colour expert_replicas() const;

  // Adds one message for each size below 1, or one when the product is not
  // world_size or ep does not divide dp x cp:
  //   [parallel_dims] dp 2 * pp 2 * cp 1 * tp 3 = 12, but world size is 8
  void validate(int world_size, std::vector<std::string>& problems) const;

  // With a dp that takes the ranks which the other axes leave, rounded down.
  ParallelDims with_rest_for(int world_size) const;

  // rank: from 0 to world_size() - 1.
  Coordinate coordinate(int rank) const;
  // "dp 1, tp 0": the coordinates along axes of several ranks, for messages.
  std::string describe_coordinate(int rank) const;
  // The inverse of coordinate().
  int rank(const Coordinate& coordinate) const;

  // The ranks of `rank`'s colour, ascending; `rank` is among them.
  std::vector<int> members(const Colour& colour, int rank) const;
  // Every group along these axes, in the order of their lowest rank; together
  // they hold each rank once.
  std::vector<std::vector<int>> groups(const std::vector<Axis>& along) const;

  // "dp 2 * pp 2 * cp 1 * tp 2", with experts divided also " (ep 2)"
  std::string product() const;
  // "dp 2 * cp 1": the sizes along these axes.
  std::string product(const std::vector<Axis>& along) const;
  // The grid, one line per rank.
  std::string table() const;
};

// The member of a size, for tables of config keys and options.
int ParallelDims::*size_member(Axis axis);

// All sizes whose product is world_size: tp ascending, then cp, then pp.
std::vector<ParallelDims> all_dims(int world_size);

// The sizes by their keys, from 1 on, as far as an int goes. For configs that
// others wrote.
ParallelDims read_dims(
    const std::function<int64_t(const std::string& key)>& size_of);

}  // namespace brigade

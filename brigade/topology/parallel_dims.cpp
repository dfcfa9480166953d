#include "brigade/topology/parallel_dims.h"

#include <fmt/format.h>

#include <tuple>

#include "brigade/base/check.h"

namespace brigade {

const char* to_string(Axis axis) {
  switch (axis) {
    case Axis::kDp:
      return "dp";
    case Axis::kPp:
      return "pp";
    case Axis::kCp:
      return "cp";
    case Axis::kTp:
      return "tp";
  }
  return "?";
}

int Coordinate::operator[](Axis axis) const {
  switch (axis) {
    case Axis::kDp:
      return dp;
    case Axis::kPp:
      return pp;
    case Axis::kCp:
      return cp;
    case Axis::kTp:
      return tp;
  }
  return 0;
}

int ParallelDims::operator[](Axis axis) const {
  return Coordinate{.dp = dp, .tp = tp, .pp = pp, .cp = cp}[axis];
}

void ParallelDims::validate(int world_size, std::vector<std::string>& problems)
    const {
  bool positive = true;
  for (Axis axis : kAxes) {
    if ((*this)[axis] >= 1)
      continue;
    positive = false;
    problems.push_back(fmt::format(
        "[parallel_dims] {} is {}, but every size is at least 1",
        to_string(axis),
        (*this)[axis]));
  }
  if (!positive)
    return;
  // Four ints multiply past 64 bits only when two of them do past 32, and no
  // world is that large: stop at the first product that left any world behind.
  int64_t product = 1;
  for (Axis axis : kAxes) {
    if (product <= INT32_MAX)
      product *= (*this)[axis];
  }
  if (product != world_size)
    problems.push_back(fmt::format(
        "[parallel_dims] {} = {}{}, but world size is {}",
        this->product(),
        product > INT32_MAX ? "at least " : "",
        product,
        world_size));
}

Coordinate ParallelDims::coordinate(int rank) const {
  BRIGADE_ASSERT(
      rank >= 0 && rank < world_size(), "rank {} of {}", rank, world_size());
  return {
      .dp = rank / (tp * cp * pp),
      .tp = rank % tp,
      .pp = rank / (tp * cp) % pp,
      .cp = rank / tp % cp};
}

std::string ParallelDims::describe_coordinate(int rank) const {
  const Coordinate at = coordinate(rank);
  std::string text;
  for (const auto& [name, size, index] :
       {std::tuple{"dp", dp, at.dp},
        std::tuple{"tp", tp, at.tp},
        std::tuple{"pp", pp, at.pp},
        std::tuple{"cp", cp, at.cp}}) {
    if (size > 1)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, index);
  }
  return text;
}

int ParallelDims::rank(const Coordinate& coordinate) const {
  for (Axis axis : kAxes)
    BRIGADE_ASSERT(
        coordinate[axis] >= 0 && coordinate[axis] < (*this)[axis],
        "{} coordinate {} of {}",
        to_string(axis),
        coordinate[axis],
        (*this)[axis]);
  return ((coordinate.dp * pp + coordinate.pp) * cp + coordinate.cp) * tp +
         coordinate.tp;
}

std::vector<int> ParallelDims::members(Axis axis, int rank) const {
  const Coordinate self = coordinate(rank);
  std::vector<int> result;
  for (int other = 0; other < world_size(); ++other) {
    const Coordinate there = coordinate(other);
    bool same = true;
    for (Axis fixed : kAxes)
      same = same && (fixed == axis || there[fixed] == self[fixed]);
    if (same)
      result.push_back(other);
  }
  return result;
}

std::vector<int> ParallelDims::dp_cp_members(int rank) const {
  const Coordinate self = coordinate(rank);
  std::vector<int> result;
  for (int other = 0; other < world_size(); ++other) {
    const Coordinate there = coordinate(other);
    if (there.pp == self.pp && there.tp == self.tp)
      result.push_back(other);
  }
  return result;
}

namespace {

// A group is listed when its lowest member is met.
template <typename MembersOf>
std::vector<std::vector<int>> collect_groups(
    int world_size,
    MembersOf members_of) {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<int> members = members_of(rank);
    if (members.front() == rank)
      groups.push_back(std::move(members));
  }
  return groups;
}

}  // namespace

std::vector<std::vector<int>> ParallelDims::groups(Axis axis) const {
  return collect_groups(
      world_size(), [&](int rank) { return members(axis, rank); });
}

std::vector<std::vector<int>> ParallelDims::dp_cp_groups() const {
  return collect_groups(
      world_size(), [&](int rank) { return dp_cp_members(rank); });
}

std::string ParallelDims::product() const {
  return fmt::format("dp {} * pp {} * cp {} * tp {}", dp, pp, cp, tp);
}

std::string ParallelDims::table() const {
  std::string text = fmt::format("{} = {} ranks\n", product(), world_size()) +
                     "rank   dp   pp   cp   tp\n";
  for (int rank = 0; rank < world_size(); ++rank) {
    const Coordinate at = coordinate(rank);
    text += fmt::format(
        "{:>4} {:>4} {:>4} {:>4} {:>4}\n", rank, at.dp, at.pp, at.cp, at.tp);
  }
  return text;
}

}  // namespace brigade

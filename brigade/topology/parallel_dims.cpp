#include "brigade/topology/parallel_dims.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "brigade/base/check.h"

namespace brigade {

namespace {

struct AxisMembers {
  const char* name;
  int ParallelDims::*size;
  int Coordinate::*position;
};

// In the order of Axis.
constexpr AxisMembers kMembers[] = {
    {"dp", &ParallelDims::dp, &Coordinate::dp},
    {"pp", &ParallelDims::pp, &Coordinate::pp},
    {"cp", &ParallelDims::cp, &Coordinate::cp},
    {"tp", &ParallelDims::tp, &Coordinate::tp}};
static_assert(std::size(kMembers) == kAxes.size());

const AxisMembers& members_of(Axis axis) {
  return kMembers[static_cast<size_t>(axis)];
}

}  // namespace

const char* to_string(Axis axis) {
  return members_of(axis).name;
}

int& Coordinate::operator[](Axis axis) {
  return this->*members_of(axis).position;
}

int Coordinate::operator[](Axis axis) const {
  return this->*members_of(axis).position;
}

int ParallelDims::operator[](Axis axis) const {
  return this->*members_of(axis).size;
}

int ParallelDims::world_size() const {
  int product = 1;
  for (const Axis axis : kAxes)
    product *= (*this)[axis];
  return product;
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
  Coordinate at;
  for (size_t i = kAxes.size(); i-- > 0;) {
    at[kAxes[i]] = rank % (*this)[kAxes[i]];
    rank /= (*this)[kAxes[i]];
  }
  return at;
}

std::string ParallelDims::describe_coordinate(int rank) const {
  const Coordinate at = coordinate(rank);
  std::string text;
  for (const Axis axis : {Axis::kDp, Axis::kTp, Axis::kPp, Axis::kCp}) {
    if ((*this)[axis] > 1)
      text += fmt::format(
          "{}{} {}", text.empty() ? "" : ", ", to_string(axis), at[axis]);
  }
  return text;
}

int ParallelDims::rank(const Coordinate& coordinate) const {
  int rank = 0;
  for (const Axis axis : kAxes) {
    BRIGADE_ASSERT(
        coordinate[axis] >= 0 && coordinate[axis] < (*this)[axis],
        "{} coordinate {} of {}",
        to_string(axis),
        coordinate[axis],
        (*this)[axis]);
    rank = rank * (*this)[axis] + coordinate[axis];
  }
  return rank;
}

std::vector<int> ParallelDims::members(const Colour& colour, int rank) const {
  const std::vector<int> own = colour(coordinate(rank));
  std::vector<int> result;
  for (int other = 0; other < world_size(); ++other) {
    if (colour(coordinate(other)) == own)
      result.push_back(other);
  }
  return result;
}

namespace {

// What stays the same along these axes: the coordinates on all others.
Colour along_axes(const std::vector<Axis>& along) {
  return [along](const Coordinate& at) {
    std::vector<int> fixed;
    for (const Axis axis : kAxes) {
      if (std::find(along.begin(), along.end(), axis) == along.end())
        fixed.push_back(at[axis]);
    }
    return fixed;
  };
}

}  // namespace

std::vector<int> ParallelDims::members(const std::vector<Axis>& along, int rank)
    const {
  return members(along_axes(along), rank);
}

std::vector<std::vector<int>> ParallelDims::groups(
    const std::vector<Axis>& along) const {
  std::vector<std::vector<int>> groups;
  const Colour colour = along_axes(along);
  std::map<std::vector<int>, size_t> group_of;
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto [found, is_new] =
        group_of.emplace(colour(coordinate(rank)), groups.size());
    if (is_new)
      groups.emplace_back();
    groups[found->second].push_back(rank);
  }
  return groups;
}

std::string ParallelDims::product() const {
  std::string text;
  for (const Axis axis : kAxes)
    text += fmt::format(
        "{}{} {}", text.empty() ? "" : " * ", to_string(axis), (*this)[axis]);
  return text;
}

std::string ParallelDims::table() const {
  std::string text =
      fmt::format("{} = {} ranks\nrank", product(), world_size());
  for (const Axis axis : kAxes)
    text += fmt::format(" {:>4}", to_string(axis));
  text += "\n";
  for (int rank = 0; rank < world_size(); ++rank) {
    const Coordinate at = coordinate(rank);
    text += fmt::format("{:>4}", rank);
    for (const Axis axis : kAxes)
      text += fmt::format(" {:>4}", at[axis]);
    text += "\n";
  }
  return text;
}

}  // namespace brigade

#include "brigade/topology/parallel_dims.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "brigade/base/check.h"

namespace brigade {

namespace {

struct AxisRow {
  const char* name;
  const char* meaning;
  int ParallelDims::*size;
  int Coordinate::*position;
};

// The order is that of Axis.
constexpr AxisRow kRows[] = {
    {"dp", "data parallel", &ParallelDims::dp, &Coordinate::dp},
    {"tp", "tensor parallel", &ParallelDims::tp, &Coordinate::tp},
    {"pp", "pipeline parallel", &ParallelDims::pp, &Coordinate::pp},
    {"cp", "context parallel", &ParallelDims::cp, &Coordinate::cp}};
static_assert(std::size(kRows) == kNamedAxes.size());

const AxisRow& row_of(Axis axis) {
  return kRows[static_cast<size_t>(axis)];
}

// Adds the sizes of kAxes[left - 1], ..., kAxes[0] whose product is `ranks`.
void add_dims(
    size_t left,
    int ranks,
    ParallelDims dims,
    std::vector<ParallelDims>& all) {
  const Axis axis = kAxes[left - 1];
  if (left == 1) {
    dims[axis] = ranks;
    all.push_back(dims);
    return;
  }
  for (int size = 1; size <= ranks; ++size) {
    if (ranks % size != 0)
      continue;
    dims[axis] = size;
    add_dims(left - 1, ranks / size, dims, all);
  }
}

}  // namespace

const char* to_string(Axis axis) {
  return row_of(axis).name;
}

const char* meaning_of(Axis axis) {
  return row_of(axis).meaning;
}

std::string names_of(const std::vector<Axis>& axes) {
  std::string names;
  for (const Axis axis : axes)
    names += fmt::format("{}{}", names.empty() ? "" : " x ", to_string(axis));
  return names;
}

std::string size_key_of(Axis axis) {
  return fmt::format("{}_size", to_string(axis));
}

int ParallelDims::*size_member(Axis axis) {
  return row_of(axis).size;
}

std::vector<ParallelDims> all_dims(int world_size) {
  std::vector<ParallelDims> all;
  add_dims(kAxes.size(), world_size, {}, all);
  return all;
}

ParallelDims read_dims(
    const std::function<int64_t(const std::string& key)>& size_of) {
  ParallelDims dims;
  const auto size = [&](const std::string& key) {
    return static_cast<int>(std::clamp<int64_t>(size_of(key), 1, INT32_MAX));
  };
  for (const Axis axis : kNamedAxes)
    dims[axis] = size(size_key_of(axis));
  dims.ep = size("ep_size");
  return dims;
}

int& Coordinate::operator[](Axis axis) {
  return this->*row_of(axis).position;
}

int Coordinate::operator[](Axis axis) const {
  return this->*row_of(axis).position;
}

std::vector<int> Coordinate::values() const {
  std::vector<int> values;
  for (const Axis axis : kAxes)
    values.push_back((*this)[axis]);
  return values;
}

std::vector<int> Coordinate::part_colour(
    std::initializer_list<int> more) const {
  std::vector<int> colour;
  for (const Axis axis : kModelAxes)
    colour.push_back((*this)[axis]);
  colour.insert(colour.end(), more);
  return colour;
}

bool Coordinate::leads_stage() const {
  return std::all_of(kModelAxes.begin(), kModelAxes.end(), [&](Axis axis) {
    return axis == Axis::kPp || (*this)[axis] == 0;
  });
}

int& ParallelDims::operator[](Axis axis) {
  return this->*row_of(axis).size;
}

int ParallelDims::operator[](Axis axis) const {
  return this->*row_of(axis).size;
}

int ParallelDims::world_size() const {
  int product = 1;
  for (const Axis axis : kAxes)
    product *= (*this)[axis];
  return product;
}

double ParallelDims::rank_count() const {
  double product = 1;
  for (const Axis axis : kAxes)
    product *= (*this)[axis];
  return product;
}

int ParallelDims::size(const std::vector<Axis>& along) const {
  int product = 1;
  for (const Axis axis : along)
    product *= (*this)[axis];
  return product;
}

int ParallelDims::place(const std::vector<Axis>& along, const Coordinate& at)
    const {
  int index = 0;
  for (const Axis axis : along)
    index = index * (*this)[axis] + at[axis];
  return index;
}

ParallelDims ParallelDims::with_rest_for(int world_size) const {
  ParallelDims filled = *this;
  filled.dp = 1;
  const double others = filled.rank_count();
  filled.dp = others > 0 ? static_cast<int>(world_size / others) : 0;
  return filled;
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
  if (ep < 1) {
    positive = false;
    problems.push_back(fmt::format(
        "[parallel_dims] ep is {}, but every size is at least 1", ep));
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
  else if (replicas() % ep != 0)
    problems.push_back(fmt::format(
        "[parallel_dims] ep {} does not divide {} = {}: experts are divided "
        "among ranks of {}",
        ep,
        this->product(kReplicaAxes),
        replicas(),
        names_of(kReplicaAxes)));
}

Colour ParallelDims::expert_parallel() const {
  return [dims = *this](const Coordinate& at) {
    return at.part_colour({dims.replica(at) / dims.ep});
  };
}

Colour ParallelDims::expert_replicas() const {
  return [dims = *this](const Coordinate& at) {
    return at.part_colour({dims.expert_rank(at)});
  };
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
  for (const Axis axis : kNamedAxes) {
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
  const std::string text = product({kAxes.begin(), kAxes.end()});
  // No factor: experts are divided within dp x cp.
  return ep > 1 ? fmt::format("{} (ep {})", text, ep) : text;
}

std::string ParallelDims::product(const std::vector<Axis>& along) const {
  std::string text;
  for (const Axis axis : along)
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

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>

#include "brigade/base/readable.h"
#include "cli/inspect.h"

namespace brigade::cli {
namespace {

// Tensors that differ only in one number of their names, such as the layer.
struct TensorGroup {
  std::string name;  // with * for the number
  std::string dtype;
  std::string shape;
  std::vector<uint64_t> numbers;
  uint64_t size_bytes = 0;
};

// Splits "model.layers.12.mlp.weight" at its first number between dots.
struct NumberedName {
  std::string before;
  std::optional<uint64_t> number;
  std::string after;
};

NumberedName split_number(const std::string& name) {
  size_t begin = 0;
  while (begin < name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool is_number = !part.empty() && part.size() < 10 &&
                           std::all_of(part.begin(), part.end(), [](char c) {
                             return c >= '0' && c <= '9';
                           });
    if (is_number)
      return {name.substr(0, begin), std::stoull(part), name.substr(end)};
    begin = end + 1;
  }
  return {name, std::nullopt, ""};
}

// "0-31", "0,2,5-7".
std::string as_ranges(std::vector<uint64_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1)
      ++last;
    text += text.empty() ? "" : ",";
    text += last == i ? fmt::to_string(numbers[i])
                      : fmt::format("{}-{}", numbers[i], numbers[last]);
    i = last + 1;
  }
  return text;
}

uint64_t numel_of(const CheckpointTensor& tensor) {
  return std::accumulate(
      tensor.shape.begin(),
      tensor.shape.end(),
      uint64_t{1},
      std::multiplies<>());
}

std::vector<TensorGroup> group_tensors(
    const std::vector<CheckpointTensor>& tensors,
    bool list_all) {
  std::vector<TensorGroup> groups;
  std::map<std::string, size_t> places;
  for (const CheckpointTensor& tensor : tensors) {
    TensorGroup group{
        .name = tensor.name,
        .dtype = std::string(name_of(tensor.dtype)),
        .shape = fmt::format("[{}]", fmt::join(tensor.shape, ", ")),
        .numbers = {},
        .size_bytes = tensor.size_bytes};
    const NumberedName split = split_number(tensor.name);
    if (split.number && !list_all) {
      group.name = split.before + "*" + split.after;
      group.numbers = {*split.number};
    }
    const auto [place, is_new] = places.emplace(
        group.name + ' ' + group.dtype + ' ' + group.shape, groups.size());
    if (is_new) {
      groups.push_back(std::move(group));
    } else {
      TensorGroup& known = groups[place->second];
      known.size_bytes += group.size_bytes;
      known.numbers.insert(
          known.numbers.end(), group.numbers.begin(), group.numbers.end());
    }
  }
  return groups;
}

}  // namespace

void print_tensors(
    const std::vector<CheckpointTensor>& tensors,
    bool list_all) {
  uint64_t numel = 0;
  uint64_t size_bytes = 0;
  std::map<std::string, uint64_t> by_dtype;
  for (const CheckpointTensor& tensor : tensors) {
    numel += numel_of(tensor);
    size_bytes += tensor.size_bytes;
    by_dtype[std::string(name_of(tensor.dtype))] += numel_of(tensor);
  }
  std::string dtypes;
  for (const auto& [dtype, count] : by_dtype)
    dtypes += fmt::format(
        "{}{} {}", dtypes.empty() ? "" : ", ", grouped(count), dtype);
  fmt::print(
      "{} tensors, {} elements ({}), {}\n",
      grouped(tensors.size()),
      grouped(numel),
      dtypes,
      readable_bytes(static_cast<double>(size_bytes)));

  const auto groups = group_tensors(tensors, list_all);
  size_t name_width = 0;
  size_t shape_width = 0;
  for (const TensorGroup& group : groups) {
    name_width = std::max(name_width, group.name.size());
    shape_width = std::max(shape_width, group.shape.size());
  }
  for (const TensorGroup& group : groups) {
    fmt::print(
        "  {:<{}}  {:<5} {:<{}}  {}{}\n",
        group.name,
        name_width,
        group.dtype,
        group.shape,
        shape_width,
        readable_bytes(static_cast<double>(group.size_bytes)),
        group.numbers.empty()
            ? ""
            : fmt::format(", * = {}", as_ranges(group.numbers)));
  }
}

}  // namespace brigade::cli

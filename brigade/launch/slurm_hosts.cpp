#include "brigade/launch/slurm_hosts.h"

#include <fmt/format.h>

#include <charconv>

#include "brigade/base/checked_math.h"
#include "brigade/base/error.h"

namespace brigade {

namespace {

[[noreturn]] void refuse(std::string_view list, const char* why) {
  throw ConfigError(fmt::format(
      "[launch] '{}' is not a node list of Slurm: {}; set MASTER_ADDR and "
      "MASTER_PORT instead",
      list,
      why));
}

// Digits alone, at the front of `text`, which they are removed from.
uint64_t take_number(std::string_view list, std::string_view& text) {
  uint64_t number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc())
    refuse(list, "expected a number");
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

// The inside of one [...]: "03-05,9".
struct Bracket {
  std::string_view first;  // digits as written: "03"
  uint64_t count = 0;
};

Bracket parse_bracket(std::string_view list, std::string_view inside) {
  Bracket bracket;
  while (true) {
    const std::string_view before = inside;
    const uint64_t begin = take_number(list, inside);
    if (bracket.count == 0)
      bracket.first = before.substr(0, before.size() - inside.size());
    uint64_t end = begin;
    if (inside.starts_with('-')) {
      inside.remove_prefix(1);
      end = take_number(list, inside);
    }
    if (end < begin)
      refuse(list, "a range runs backwards");
    const auto length = checked_add(end - begin, 1);
    const auto count =
        length ? checked_add(bracket.count, *length) : std::nullopt;
    if (!count)
      refuse(list, "too many nodes");
    bracket.count = *count;
    if (inside.empty())
      return bracket;
    if (!inside.starts_with(','))
      refuse(list, "expected ',' between the brackets");
    inside.remove_prefix(1);
  }
}

}  // namespace

SlurmHosts parse_slurm_hosts(std::string_view node_list) {
  SlurmHosts hosts;
  std::string first;  // of the entry being read
  uint64_t entry_count = 1;
  bool entry_is_empty = true;
  const auto finish_entry = [&] {
    if (entry_is_empty)
      refuse(node_list, "an entry is empty");
    if (hosts.count == 0)
      hosts.first = first;
    const auto count = checked_add(hosts.count, entry_count);
    if (!count)
      refuse(node_list, "too many nodes");
    hosts.count = *count;
    first.clear();
    entry_count = 1;
    entry_is_empty = true;
  };
  for (size_t i = 0; i < node_list.size(); ++i) {
    const char c = node_list[i];
    if (c == ',') {
      finish_entry();
    } else if (c == '[') {
      const size_t close = node_list.find(']', i);
      if (close == std::string_view::npos)
        refuse(node_list, "a '[' has no ']'");
      const Bracket bracket =
          parse_bracket(node_list, node_list.substr(i + 1, close - i - 1));
      const auto count = checked_multiply(entry_count, bracket.count);
      if (!count)
        refuse(node_list, "too many nodes");
      entry_count = *count;
      first += bracket.first;
      entry_is_empty = false;
      i = close;
    } else if (c == ']' || c == ' ') {
      refuse(node_list, "unexpected character");
    } else {
      first += c;
      entry_is_empty = false;
    }
  }
  finish_entry();
  return hosts;
}

int slurm_tasks_of_node(std::string_view tasks_per_node, int node_index) {
  std::string_view rest = tasks_per_node;
  uint64_t nodes_left = static_cast<uint64_t>(node_index) + 1;
  while (true) {
    const uint64_t tasks = take_number(tasks_per_node, rest);
    uint64_t repeat = 1;
    if (rest.starts_with("(x")) {
      rest.remove_prefix(2);
      repeat = take_number(tasks_per_node, rest);
      if (!rest.starts_with(')'))
        refuse(tasks_per_node, "expected ')'");
      rest.remove_prefix(1);
    }
    if (nodes_left <= repeat)
      return static_cast<int>(tasks);
    nodes_left -= repeat;
    if (!rest.starts_with(','))
      refuse(tasks_per_node, "has fewer nodes than SLURM_NODEID");
    rest.remove_prefix(1);
  }
}

}  // namespace brigade

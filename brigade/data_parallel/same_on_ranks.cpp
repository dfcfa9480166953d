#include "brigade/data_parallel/same_on_ranks.h"

#include <fmt/format.h>

#include <sstream>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"

namespace brigade {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);)
    lines.push_back(line);
  return lines;
}

}  // namespace

LineDifference first_line_difference(
    const std::string& here,
    const std::string& there) {
  const auto a = lines_of(here);
  const auto b = lines_of(there);
  LineDifference result;
  while (result.index < a.size() && result.index < b.size() &&
         a[result.index] == b[result.index])
    ++result.index;
  if (result.index < a.size())
    result.here = a[result.index];
  if (result.index < b.size())
    result.there = b[result.index];
  return result;
}

void check_same_on_ranks(
    const std::string& description,
    const std::string& what,
    Communicator& group) {
  const auto found = Agreement(group).find_difference(description);
  if (!found)
    return;
  const LineDifference line =
      first_line_difference(found->of_rank_0, found->of_rank);
  throw CommError(fmt::format(
      "[data_parallel] {} differ in group '{}': rank 0 has '{}', rank {} has "
      "'{}'; give every rank the same",
      what,
      group.name(),
      line.here,
      found->rank,
      line.there));
}

}  // namespace brigade

// What benchmarks over slow links have in common: their command line, the links
// one after the other, the folder of their runs.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/program_runs.h"
#include "bench/slow_link.h"

namespace brigade::bench {

// `arguments`: [ROUNDS [MEGABITS...]], by default 1000 and 100. Calls
// compare(runs, link, megabits, rounds) for each, the runs' ranks on the hosts
// of the link. Says why where such links are impossible here.
template <typename Config, typename Compare>
int compare_over_links(
    const std::string& what,
    const std::vector<std::string>& arguments,
    int default_rounds,
    const Config& config,
    const Compare& compare) {
  if (const std::string why_not = SlowLink::why_not(); !why_not.empty()) {
    fmt::print("{} over slow links: skipped, {}\n", what, why_not);
    return 0;
  }
  const int rounds = arguments.empty()
                         ? default_rounds
                         : positive_number("ROUNDS", arguments[0]);
  std::vector<int> megabits;
  for (size_t i = 1; i < arguments.size(); ++i)
    megabits.push_back(positive_number("MEGABITS", arguments[i]));
  if (megabits.empty())
    megabits = {1000, 100};
  const auto folder = make_temporary_folder("brigade-links");
  ProgramRuns runs(folder);
  runs.set_config(config(folder));
  for (const int each : megabits) {
    const SlowLink link(each);
    runs.set_link(&link);
    compare(runs, link, each, rounds);
    runs.set_link(nullptr);
  }
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace brigade::bench

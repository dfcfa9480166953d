// Programs as users of DDP, FSDP and ZeroRedundancyOptimizer write them.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/wrap/user_run.h"

namespace brigade::testing {

struct UserProgram {
  std::string name;
  std::function<void(UserRun&)> run;
  // Part of the message where it is refused; "": nowhere.
  std::function<std::string(const Setting&)> refusal = nullptr;
};
inline std::ostream& operator<<(std::ostream& out, const UserProgram& each) {
  return out << each.name;
}

std::vector<UserProgram> all_user_programs();

}  // namespace brigade::testing

// Replaces a forked child by a program.
#pragma once

#include <unistd.h>

#include <string>
#include <vector>

#include "brigade/launch/rank_process.h"

namespace brigade::testing {

// Becomes the program, which is looked up in PATH; ends with 127 where there is
// none.
[[noreturn]] inline void become(
    const std::string& program,
    std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), program);
  ::execvp(program.c_str(), as_pointers(arguments).data());
  ::_exit(127);
}

}  // namespace brigade::testing

// A disk that fails when told to. The test binary defines write(), fsync(),
// rename() and the like in place of libc's; they count their calls on paths
// that contain a given text, and make one of them fail or kill the process.
#pragma once

#include <string>
#include <vector>

namespace brigade::testing {

struct DiskFault {
  std::string path_part;  // which files
  int at = 0;             // the call to fail, from 1; 0: none
  int error = 0;          // errno; 0: kill -9 instead of the call
};

// Counts from now on. One fault at a time in a process.
void arm_disk(const DiskFault& fault);
void disarm_disk();
// What was called since arm_disk(): "write", "fsync", "rename", ..., each with
// the path.
std::vector<std::string> disk_calls();

}  // namespace brigade::testing

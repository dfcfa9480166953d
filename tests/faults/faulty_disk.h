// A disk that fails on request. The test binary defines write(), fsync(),
// rename() and others in place of libc's. They count calls on paths with a
// given text, and make one of them fail or kill the process.
#pragma once

#include <string>
#include <vector>

namespace brigade::testing {

struct DiskFault {
  std::string path_part;  // which files
  int at = 0;             // the call to fail, from 1; 0: none
  int error = 0;          // errno; 0: kill -9 instead of the call
};

// Counts from now on; a process has one fault at a time.
void arm_disk(const DiskFault& fault);
void disarm_disk();
// The calls since arm_disk(): "write", "fsync", "rename", ..., with the path.
std::vector<std::string> disk_calls();

}  // namespace brigade::testing

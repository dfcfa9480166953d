// Another program that works for this one: what it writes to its standard
// output is read over a pipe, which holds it back, and what it writes to its
// standard error is kept. It has this program's environment and nothing to
// read.
//
// Signals that ask this program to end are not for the helper, which is in a
// process group of its own: it ends when nobody reads the pipe any more.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "brigade/files/descriptor.h"

namespace brigade {

// One thread at a time.
class HelperProcess {
 public:
  // words[0] is a program, looked up on PATH; the others are its arguments.
  // Throws std::system_error where it cannot be started.
  explicit HelperProcess(const std::vector<std::string>& words);
  // Kills it where it has not ended.
  ~HelperProcess();
  HelperProcess(const HelperProcess&) = delete;
  HelperProcess& operator=(const HelperProcess&) = delete;

  bool has_ended() const { return process_ < 0; }
  // Up to `size` bytes of its output, at least one; 0 once it has ended, and
  // then status() is known. Throws std::system_error.
  size_t read(char* out, size_t size);

  // As of waitpid(). Precondition: has_ended().
  int status() const { return status_; }
  // The beginning of its standard error so far.
  std::string errors() const;

 private:
  int start(int output, const std::vector<std::string>& words);
  void wait();

  Descriptor output_;
  Descriptor errors_;  // a file in memory
  pid_t process_ = -1;
  int status_ = 0;
};

}  // namespace brigade

#include "brigade/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace brigade::detail {

void assert_failed(
    const char* expression,
    const char* file,
    int line,
    const std::string& message) {
  std::fprintf(
      stderr,
      "brigade bug: %s:%d: assertion '%s' failed: %s\n",
      file,
      line,
      expression,
      message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace brigade::detail

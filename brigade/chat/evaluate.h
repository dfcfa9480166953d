// Renders a parsed template.
#pragma once

#include <cstdint>
#include <string>

#include "brigade/chat/syntax.h"
#include "brigade/chat/value.h"

namespace brigade::jinja {

struct EvaluateOptions {
  std::string name;  // of the template, as errors call it
  // What strftime_now() tells, in seconds since 1970, UTC.
  int64_t now = 0;
  // Larger texts and longer computations are errors: a template is a program,
  // and not always one's own.
  size_t most_bytes = 64 << 20;
  int64_t most_steps = 2'000'000;
};

// Throws DataError with name and line: something undefined or not supported is
// used, a limit is exceeded, or the template calls raise_exception().
Text evaluate(
    const Statements& statements,
    const Dict& variables,
    const EvaluateOptions& options);

}  // namespace brigade::jinja

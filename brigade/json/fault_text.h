// What is wrong with a document, in the words that all messages use.
//
// PURE.
#pragma once

#include <fmt/format.h>

#include <string>

#include "brigade/json/string_literal.h"
#include "brigade/json/visit.h"

namespace brigade {

// "not valid JSON, at /training/seed: expected ',' or '}', found 'x'".
inline std::string describe(const JsonFault& fault) {
  return fmt::format(
      "not valid JSON{}{}: {}",
      fault.pointer.empty() ? "" : ", at ",
      shown_text(fault.pointer),
      fault.problem);
}

}  // namespace brigade

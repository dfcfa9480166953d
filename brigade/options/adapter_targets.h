// How the linears with an adapter are named (AdapterOptions::targets).
#pragma once

#include <string>

namespace brigade {

inline constexpr const char* kAllLinear = "all-linear";

// Whether a target names the linear of that full name: it is the whole name, or
// its end from a dot on.
inline bool is_target(const std::string& target, const std::string& linear) {
  return target == kAllLinear || linear == target ||
         linear.ends_with("." + target);
}

}  // namespace brigade

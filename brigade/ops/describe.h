// Tensors in error messages: "BFloat16 [4, 256, 288]".
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <string>
#include <string_view>
#include <utility>

#include "brigade/base/error.h"

namespace brigade::ops {

inline std::string describe(const torch::Tensor& tensor) {
  if (!tensor.defined())
    return "undefined";
  return fmt::format(
      "{} [{}]",
      c10::toString(tensor.scalar_type()),
      fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "));
}

// Throws Error "[op] message" unless the condition holds: a caller's mistake.
template <typename... Args>
void require(
    bool condition,
    std::string_view op,
    fmt::format_string<Args...> format,
    Args&&... args) {
  if (condition) [[likely]]
    return;
  throw Error(
      ExitCode::kUnexpected,
      fmt::format(
          "[{}] {}", op, fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace brigade::ops

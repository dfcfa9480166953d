// Tensors in error messages: "BFloat16 [4, 256, 288]".
#pragma once

#include <fmt/format.h>
#include <torch/types.h>

#include <string>
#include <string_view>
#include <utility>

#include "brigade/base/error.h"

namespace brigade::ops {

// Written where a message is, and only then: ops describe their operands in
// every call. Refers to the tensor.
struct Description {
  const torch::Tensor* tensor = nullptr;  // null: nothing to say
};
inline Description describe(const torch::Tensor& tensor) {
  return {&tensor};
}
std::string to_string(const Description& description);

// Throws UsageError "[op] message" unless the condition holds.
template <typename... Args>
void require(
    bool condition,
    std::string_view op,
    fmt::format_string<Args...> format,
    Args&&... args) {
  if (condition) [[likely]]
    return;
  throw UsageError(fmt::format(
      "[{}] {}", op, fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace brigade::ops

template <>
struct fmt::formatter<brigade::ops::Description>
    : fmt::formatter<std::string_view> {
  template <typename Context>
  auto format(const brigade::ops::Description& description, Context& context)
      const {
    return fmt::formatter<std::string_view>::format(
        brigade::ops::to_string(description), context);
  }
};

// What is compared of a checkpoint's files before they are loaded;
// checkpoint.verify. PURE.
#pragma once

#include "brigade/options/choice.h"

namespace brigade {

enum class VerifyLevel {
  kSize,  // every file is there, with its size
  kFull,  // and with its SHA-256
};
template <>
inline constexpr std::array kChoices<VerifyLevel>{
    Choice{VerifyLevel::kFull, "full"},
    Choice{VerifyLevel::kSize, "size"}};

}  // namespace brigade

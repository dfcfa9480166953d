// Which activations a layer computes a second time in backward instead of
// keeping them from forward.
#pragma once

namespace brigade {

enum class Recompute {
  kNone,
  kSelective,  // attention
  kFull,       // the whole block
};

constexpr const char* to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kSelective:
      return "selective";
    case Recompute::kFull:
      return "full";
  }
  return "?";
}

}  // namespace brigade

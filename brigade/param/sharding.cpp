#include "brigade/param/sharding.h"

namespace brigade {

const char* to_string(Sharding sharding) {
  switch (sharding) {
    case Sharding::kNone:
      return "none";
    case Sharding::kOptimizer:
      return "optimizer";
    case Sharding::kGradients:
      return "gradients";
    case Sharding::kParameters:
      return "parameters";
  }
  return "unknown";
}

}  // namespace brigade

#include "brigade/ops/swiglu.h"

#include "brigade/ops/describe.h"
#include "brigade/ops/plain.h"

namespace brigade::ops {

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  require(
      gate.dim() >= 1 && gate.sizes() == up.sizes() &&
          gate.scalar_type() == up.scalar_type(),
      "swiglu",
      "gate {} and up {} differ",
      describe(gate),
      describe(up));
  return plain::swiglu(gate, up);
}

Tensor swiglu(const Tensor& gate_up) {
  require(
      gate_up.dim() >= 1 && gate_up.size(-1) % 2 == 0,
      "swiglu",
      "gate_up {} has an odd last dim",
      describe(gate_up));
  const int64_t half = gate_up.size(-1) / 2;
  return swiglu(gate_up.narrow(-1, 0, half), gate_up.narrow(-1, half, half));
}

}  // namespace brigade::ops

// What of a rank's parameters goes into a checkpoint, under which name, and
// which of the replicas writes it.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "brigade/checkpoint/tensor_part.h"
#include "brigade/comm/communicator.h"
#include "brigade/param/param.h"

namespace brigade {

// This rank's range of a tensor of a parameter, which is stored as PREFIX + the
// parameter's name.
State part_of(
    const std::string& prefix,
    const Param& param,
    const torch::Tensor& tensor);

// The same of a state.
State part_of(
    const std::string& prefix,
    const Param& param,
    const State& state);

// The weight in float32: of bf16 the whole master.
State master_part_of(const std::string& prefix, const Param& param);

// The optimizer's tensors of one parameter. A float32 weight is its own master.
std::vector<State> optimizer_parts(const Param& param);

// Divides the tensors that all replicas hold among them: each goes to the
// one that has the fewest bytes so far, the same one on every rank.
class Shares {
 public:
  explicit Shares(const Communicator& replicas);
  bool take(const State& part);

 private:
  size_t mine_;
  std::vector<uint64_t> bytes_;
};

}  // namespace brigade

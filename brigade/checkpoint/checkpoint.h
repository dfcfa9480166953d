// The tensors of a checkpoint (run/stored_checkpoint.h).
#pragma once

#include <torch/types.h>

#include <string>

#include "brigade/checkpoint/tensor_part.h"
#include "brigade/run/stored_checkpoint.h"

namespace brigade {

// Reads the tensors of a checkpoint.
class Checkpoint : public StoredCheckpoint {
 public:
  using StoredCheckpoint::StoredCheckpoint;

  // Fills part.tensor (converting float types and codes; padding is zeroed).
  // Codes come back bit for bit where ranks cut the tensor as it was saved.
  // Throws DataError naming the tensor when it is missing, has holes or another
  // shape.
  void read(const State& part) const;
  // The whole tensor, in the stored type; of codes float32.
  torch::Tensor read_whole(const std::string& name) const;

 private:
  static torch::Tensor values_of(const Piece& piece);
};

}  // namespace brigade

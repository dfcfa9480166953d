// Expert parallel: each rank of a group holds an equal part of the experts, in
// rank order, and rows of tokens go to the rank that holds their expert and
// back.
//
// Sizes are exchanged first, E / R integers with each rank, and read on the
// host. Then rows: those that go to other ranks, once there and once back, and
// the same in backward. No row is dropped or padded. All ranks of the group
// take part in every exchange, in one order, also with no rows.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "brigade/comm/communicator.h"

namespace brigade {

class ExpertExchange {
 public:
  ExpertExchange() = default;
  // Collective. counts: this rank's rows for each of the E experts of all
  // ranks; the group's size divides E. `device`: of the rows.
  ExpertExchange(
      CommunicatorPtr group,
      const std::vector<int64_t>& counts,
      torch::Device device);

  // Rows of each of this rank's experts, from all ranks.
  const std::vector<int64_t>& counts() const { return counts_; }

  // Collective. rows: [R, C], by expert. Returns the rows of this rank's
  // experts, by expert, then by the rank that they came from.
  torch::Tensor to_experts(const torch::Tensor& rows) const;
  // Collective: the reverse.
  torch::Tensor from_experts(const torch::Tensor& rows) const;

 private:
  bool is_alone() const { return group_->size() == 1; }

  CommunicatorPtr group_;
  std::vector<int64_t> counts_;
  RowSplits splits_;  // of to_experts()
  // Between what arrives, by rank and then by expert, and the result.
  torch::Tensor by_expert_, by_rank_;
};

}  // namespace brigade

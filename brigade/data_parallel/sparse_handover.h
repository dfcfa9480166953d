// Gradients that autograd gives as sparse tensors (EmbeddingOptions::sparse):
// they stay sparse, outside of the flat memory.
//
// Ranks exchange the indices and values of their rows, and each adds them up in
// the order of ranks, so that all have the same bits. Micro-batches accumulate
// in .grad, as autograd does it, in the parameter's dtype.
//
// Costs at a step's end, after the buckets were launched: an all-gather of 8
// bytes per parameter, and two more per parameter of n bytes together,
// where n is the size of the indices and values of the rank that has most rows.
#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/data_parallel/handover.h"

namespace brigade {

class SparseHandover : public Handover {
 public:
  explicit SparseHandover(HandoverParts parts) : Handover(std::move(parts)) {}

  bool keep_share(int param, int ranks) override;
  void before_accumulate(int param, GradPart part) override;
  void finalize_missing(int param) override { grad_of(param).reset(); }
  void give(int param, GradUse use) override;
  // Does nothing: the sum is where autograd left it.
  void after_accumulate(int, GradPart) override {}
  void after_last(int, GradPart) override {}
  void finalize(int) override {}
  void finalize_by_hand(int) override {}
  void follow_memory() override {}

  // Collective in each group that has sparse gradients, after the step's
  // buckets were launched: sums each gradient over the group, for give().
  void reduce();
  // Drops this rank's gradients: it has none in this step.
  void drop();

 private:
  void reduce_group(const std::vector<int>& params, Communicator& group);
};

// Null if no parameter has sparse gradients.
std::unique_ptr<SparseHandover> make_sparse_handover(HandoverParts parts);

}  // namespace brigade

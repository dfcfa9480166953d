// What a program does that a prediction depends on, in Brigade's ways. Those of
// the programs whose runs others published are in bench/published/.
//
// PURE.
#pragma once

#include <cstdint>

#include "brigade/base/units.h"
#include "brigade/machine/collective_time.h"
#include "brigade/planner/layout.h"

namespace brigade::planner {

struct Training;

// Seconds of attention in the two passes over a layer.
struct AttentionTime {
  double forward = 0;
  double backward = 0;
};

struct Program {
  virtual ~Program() = default;

  double elementwise_passes = 1;  // over memory, per pass of a fused kernel
  double logit_bytes = 8;         // moved per logit, forward and backward
  double host_s = 0;  // per pass over a layer: launches that the device awaits
  double recomputed_layers = 1;  // the part that Layout::recompute applies to
  int zero_ranks = 0;  // neighbours of dp x cp that zero shards over; 0: all
  int64_t bucket_bytes = 25 * MiB;
  bool reduces_in_backward = true;  // gradients, by bucket
  bool gathers_in_forward = false;  // weights, after a sharded step
  // Both ranks of a transfer between stages; false: they go on computing.
  bool waits_for_transfers = false;

  virtual AttentionTime attention(
      const Training& training,
      const Layout& layout,
      int64_t window) const;
  // What attention keeps of one micro-batch for its backward, less its inputs
  // and output: the log-sum-exp of each query.
  virtual double kept_score_bytes(
      const Training& training,
      const Layout& layout) const;
  // Those of a micro-batch's `tokens` on a rank whose logits exist at once.
  virtual double tokens_with_logits(const Layout& layout, double tokens) const;
  // What no computation hides of `seconds` of tensor parallel's collectives in
  // a pass over a layer.
  virtual double exposed_regions(
      const Training& /*training*/,
      const Layout& /*layout*/,
      double seconds,
      double /*products*/) const {
    return seconds;
  }
  // Seconds to add a micro-batch's gradients of so many parameters to those
  // before. 0: the products add.
  virtual double accumulation(
      const Training& /*training*/,
      const Layout& /*layout*/,
      int64_t /*parameters*/) const {
    return 0;
  }
  // How often a rank of a ring of cp > 1 passes a block of keys and values, or
  // of their gradients, to the next one in backward, which begins with the last
  // block: forward kept it.
  virtual int backward_exchanges(int cp) const { return 2 * cp - 3; }
  // Seconds that a tensor between two stages takes.
  virtual double transfer(const Training& training, const Layout& layout) const;
  // Seconds to gather so many bytes of weights among the ranks that zero shards
  // over.
  virtual double gather_seconds(
      const Training& training,
      const machine::GroupPlace& owners,
      double bytes) const;
  // Ranks between neighbours of an axis: dp, pp, cp, tp, slowest first.
  virtual int stride(const ParallelDims& dims, Axis axis) const;
};

// FlashAttention of that generation.
AttentionTime flash_attention(
    const Training& training,
    const Layout& layout,
    int64_t window,
    machine::AttentionKernel kernel);

}  // namespace brigade::planner

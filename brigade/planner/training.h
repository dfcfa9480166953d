// How a program trains, beside the layout: its number formats, and what its
// kernels and its communication do. The defaults are Brigade's own; published
// runs were made by other programs.
//
// PURE.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "brigade/base/units.h"
#include "brigade/planner/collective_time.h"
#include "brigade/planner/constants.h"
#include "brigade/planner/layout.h"
#include "brigade/planner/machine.h"

namespace brigade::planner {

// Bytes per parameter. Mixed precision keeps 16: a bf16 weight, an fp32
// gradient, and of the optimizer the fp32 master (of which the bf16 weight is
// the upper half here) and two fp32 moments.
struct Precision {
  ProductDtype products = ProductDtype::kBf16;
  int weight_bytes = 2;
  int gradient_bytes = 4;
  int optimizer_bytes = 10;
  int wire_bytes = 4;  // of a gradient while it is reduced
};

enum class ElementwiseKernels {
  kFused,  // one kernel for each sequence of elementwise ops
  kEager,  // one kernel per op
};
enum class Overlap { kNone, kWithComputation };
enum class WeightGather {
  kAllGather,
  kOwnerBroadcasts,  // each owner of a shard broadcasts it, one after another
};
enum class Transfers {
  kPosted,    // a rank goes on computing while a tensor travels
  kBlocking,  // both ends wait for it
};
// What of a tensor between stages crosses, where the ranks of tensor parallel
// all have the whole of it.
enum class TransferPieces {
  kWhole,    // each rank sends it
  kOfRanks,  // each sends its part, and the receivers gather
};
// How the host gives kernels to its device.
enum class Launches {
  kAhead,     // while earlier ones run
  kBlocking,  // each when the one before has ended
};
enum class Logits {
  kInChunks,  // the head's logits of a few rows at a time
  kWhole,     // of a whole micro-batch, in fp32
};
// How a micro-batch's weight gradients join those of the micro-batches before.
enum class Accumulation {
  kInProduct,  // the product adds to the gradient's memory
  kSeparate,   // the product writes a new tensor, which another kernel adds
};

// What the backward of ring attention begins with.
enum class RingBackward {
  kLastBlock,  // which forward kept: one round less (Brigade)
  kOwnBlock,
};

struct Software {
  AttentionKernel attention = AttentionKernel::kFlash2;
  ElementwiseKernels elementwise = ElementwiseKernels::kFused;
  Logits logits = Logits::kInChunks;
  Accumulation accumulation = Accumulation::kInProduct;
  Overlap gradients = Overlap::kWithComputation;
  Overlap weights = Overlap::kNone;          // the gather after a sharded step
  Transfers transfers = Transfers::kPosted;  // between stages
  TransferPieces transfer_pieces = TransferPieces::kWhole;
  Launches launches = Launches::kAhead;
  Overlap tensor_parallel = Overlap::kNone;
  RingBackward ring_backward = RingBackward::kLastBlock;
  WeightGather weight_gather = WeightGather::kAllGather;
  // Ranks that zero shards over, neighbours of a dp x cp group; 0: all.
  int zero_ranks = 0;
  RankOrder rank_order = RankOrder::kDpPpCpTp;
  int64_t bucket_bytes = 25 * MiB;
  // The part of the layers that Layout::recompute applies to.
  double recomputed_layers = 1;
  std::vector<int> stage_layers;  // empty: cut by cost
};

// All that a prediction depends on but the layout.
struct Training {
  // With the constants that were measured on it, if any were.
  void set_machine(Machine of_run) {
    constants.contention = of_run.contention.value_or(constants.contention);
    constants.device_spread =
        of_run.device_spread.value_or(constants.device_spread);
    machine = std::move(of_run);
  }

  ModelShape shape;
  Machine machine;
  Batch batch;
  Precision precision;
  Software software;
  Constants constants;
};

}  // namespace brigade::planner

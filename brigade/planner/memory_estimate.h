// The memory of each rank of a pipeline, part by part.
//
// Activations are counted as in Korthikanti et al. 2022 ("Reducing Activation
// Recomputation in Large Transformer Models"), for gated MLPs and fused
// attention too.
//
// PURE.
#pragma once

#include <array>
#include <vector>

#include "brigade/planner/stage_cut.h"
#include "brigade/planner/training.h"

namespace brigade::planner {

// Bytes on one rank.
struct MemoryParts {
  double weights = 0;
  double gradients = 0;
  double optimizer = 0;
  // Every micro-batch in flight, the logits, and what a teacher says.
  double activations = 0;
  double buffers = 0;        // of communication
  double fragmentation = 0;  // of activations and buffers: kFragmentation
  double reserved = 0;       // by the device's libraries
  double total() const;
};

// A part of MemoryParts, for code that lists or adds up all of them.
struct MemoryPart {
  double MemoryParts::*bytes;
  const char* name;
  int width;  // of its column in tables
};
inline constexpr auto kMemoryParts = std::to_array<MemoryPart>({
    {&MemoryParts::weights, "weights", 8},
    {&MemoryParts::gradients, "gradients", 9},
    {&MemoryParts::optimizer, "optimizer", 9},
    {&MemoryParts::activations, "activations", 11},
    {&MemoryParts::buffers, "buffers", 7},
    {&MemoryParts::fragmentation, "fragmentation", 13},
    {&MemoryParts::reserved, "reserved", 8},
});

inline double MemoryParts::total() const {
  double sum = 0;
  for (const MemoryPart& part : kMemoryParts)
    sum += this->*part.bytes;
  return sum;
}

// The part of activations and buffers that an allocator that caches blocks
// holds beside them.
inline constexpr double kFragmentation = 0.06;

// The logits that exist at once on the head's last stage.
double logits_bytes(const Training& training, const Layout& layout);
// What a teacher says of the step's tokens, on every rank.
double teacher_bytes(const Training& training, const Layout& layout);

// What one layer keeps of one micro-batch between its forward and backward.
// With experts: as if each had as many tokens.
double layer_activation_bytes(
    const Training& training,
    const Layout& layout,
    Recompute recompute,
    LayerMlp mlp = LayerMlp::kOne);

// Most pairs of stage and micro-batch alive on a rank of the pipeline: m for
// afab, min(m, p - r) for 1f1b, min(m, p) for zero_bubble, and
// min(m v, 2 (p - r - 1) + (v - 1) p + 1) for interleaved_1f1b (Narayanan et
// al. 2021), where p is the size of its rounds: more than the ranks where the
// micro-batches are no multiple of them.
int64_t
live_micro_batches(const Layout& layout, int64_t micro_batches, int rank);

// One entry per rank of the pipeline. `cut` has one range per stage.
std::vector<MemoryParts> estimate_memory(
    const Training& training,
    const Layout& layout,
    const std::vector<LayerRange>& cut);

// The largest total.
const MemoryParts& largest(const std::vector<MemoryParts>& ranks);

}  // namespace brigade::planner

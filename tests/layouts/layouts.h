// The layouts that a small Llama can be trained under, as data.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "brigade/topology/parallel_dims.h"

namespace brigade {

struct LayoutCase {
  ParallelDims dims;
  std::string schedule = "1f1b";
  int virtual_stages = 1;
  bool sequence_parallel = false;
  std::string recompute = "none";  // "stages": not the same in each
  std::string grad_sync = "bucketed";
  bool tied = true;
  bool documents = false;  // attention ends where a document does
  bool masked = false;     // few tokens count, in some sequences none
  bool packed = false;     // whole documents in each sequence, and padding
  // "qwen3": norms of q and k, biases of q, k and v, a sliding window;
  // "biases": of every linear.
  std::string model = "llama";
  std::string optimizer = "adamw";
  int steps = 6;
  std::string dtype = "float32";
  int zero_stage = 0;
  // Rank of adapters of every linear, beside a frozen model; 0: the model
  // trains.
  int adapter = 0;
  // "dropout", "dora", or both: "dora_dropout".
  std::string adapter_form = "lora";
  std::string kernels = "auto";  // of the layout; its oracle's are always auto
};

// Micro-batches of a step, the same in each layout.
inline constexpr int kAccumulation = 4;
// Used for models without adapters. Where a gradient cancels, or few tokens
// visit an expert, only rounding is left, of which AdamW would make a whole
// step with a smaller epsilon. (B of an adapter begins with zeros, so it
// consists of such steps; they are equal where they are whole.)
inline constexpr double kAdamEps = 1e-5;

// "dp1_tp2_pp2_cp2"
std::string name_of(const ParallelDims& dims);
// The same and what differs from the defaults: "..._zero_bubble_sp_full".
std::string name_of(const LayoutCase& layout);
// Used by GoogleTest.
void PrintTo(const LayoutCase& layout, std::ostream* out);

// Sequences of a step: as many as dp replicas with kAccumulation micro-batches
// can share out evenly. Few enough different ones, since each has an oracle.
int sequences_of_step(int dp);

// 48, or what 2 cp divides.
int tokens_of_sequence(int cp);

// As the program's overrides, data and output apart.
std::vector<std::string> overrides_of(const LayoutCase& layout);

// Covers each axis, each pair of axes, the layouts of 8 ranks with three axes,
// and each value of each option. Few: this runs in `make test`.
std::vector<LayoutCase> quick_layouts();

// The quick ones, computed by ATen's kernels.
std::vector<LayoutCase> aten_layouts();

// The product of everything: all dims up to 8 ranks that 4 heads and 4 layers
// allow, with every option that means something there.
std::vector<LayoutCase> all_layouts();

}  // namespace brigade

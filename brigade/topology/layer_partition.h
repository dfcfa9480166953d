// Cuts a model's layers into contiguous pipeline stages.
//
// The first stage holds the embedding, the last one the final norm and the
// head. Both count as work, so with a large vocabulary the last stage gets few
// layers, or only the head. Every other stage holds at least one layer.
//
// With v virtual stages per rank (interleaved_1f1b) there are S = pp * v
// stages; stage s is on pp rank s % pp.
//
// PURE.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace brigade {

// Layers begin .. end - 1 of one stage; may be empty in the first and last.
struct LayerRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
  bool operator==(const LayerRange&) const = default;
};

// Work of the parts of a model in any one unit: measured milliseconds, or
// FLOPs of estimate_layer_costs().
struct LayerCosts {
  std::vector<double> layers;  // one per layer
  double embedding = 0;
  double head = 0;
};

// The sizes from which the work of a transformer is estimated.
struct TransformerSizes {
  int num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t attention_width = 0;  // heads * head_dim
  int64_t key_value_width = 0;  // kv heads * head_dim
  int64_t vocab_size = 0;
  int64_t sequence_tokens = 0;
};

// Forward FLOPs per token: 2 per weight of a matrix product, and causal
// attention (2 products of attention_width * T / 2 each). The embedding counts
// as one for each element it looks up: little, but enough to break ties.
// Backward is proportional, so it is left out.
LayerCosts estimate_layer_costs(const TransformerSizes& sizes);

// How many stages layers are divided into, and whether the user said how.
struct LayerPartitionOptions {
  int pp = 1;
  int virtual_stages = 1;  // of each rank
  // Layers of each stage, given by the user (distributed.pp_layers); absent:
  // cut by cost.
  std::optional<std::vector<int>> pp_layers;
};

// One range per stage, pp * virtual_stages of them, covering all layers in
// order. Without pp_layers the cost of the costliest stage is minimal; among
// those cuts the sum of the squared costs is, and of equal ones the one with
// fewer layers early wins, because early stages keep the most activations
// alive.
// Adds messages to `problems` (too many stages; pp_layers that do not fit) and
// returns an empty table when there is one.
std::vector<LayerRange> partition_layers(
    const LayerCosts& costs,
    const LayerPartitionOptions& options,
    std::vector<std::string>& problems);

// The work of each stage of a partition, embedding and head included.
std::vector<double> stage_costs(
    const LayerCosts& costs,
    const std::vector<LayerRange>& partition);

}  // namespace brigade

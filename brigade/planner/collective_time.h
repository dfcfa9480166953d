// How long collectives take on the real topology: which ranks share a node, and
// which share that node's network cards.
//
// PURE.
#pragma once

#include <cstdint>

#include "brigade/planner/machine.h"
#include "brigade/topology/parallel_dims.h"

namespace brigade::planner {

// In which order ranks are numbered, slowest axis first.
enum class RankOrder {
  kDpPpCpTp,  // Brigade, picotron
  kPpDpCpTp,  // Megatron, DeepSpeed
};

// One group of a communicator as it lies on the nodes. All groups of a kind lie
// alike and work at the same time, so those on one node share its network.
struct GroupPlace {
  int ranks = 1;
  int ranks_per_node = 1;
  int nodes() const { return (ranks + ranks_per_node - 1) / ranks_per_node; }
  bool operator==(const GroupPlace&) const = default;
};

GroupPlace place_axis(
    const ParallelDims& dims,
    Axis axis,
    RankOrder order,
    int devices_per_node);
// The dp x cp group, which reduces gradients.
GroupPlace
place_dp_cp(const ParallelDims& dims, RankOrder order, int devices_per_node);

enum class Algorithm { kRing, kTree, kHierarchical };
const char* to_string(Algorithm algorithm);

// `bytes` is the whole tensor's: what every rank has before a reduce-scatter
// and after an all-gather. With n ranks on v nodes, S bytes, alpha the hop
// latencies and B the slowest link's bandwidth per rank:
//   ring           2 (n-1)/n S/B + 2 (n-v) alpha_intra + 2 v alpha_inter
//   tree           2 S/B + 2 (n/v - 1) alpha_intra + 2 log2(v) alpha_inter
//   hierarchical   ring inside, ring of shards across, ring inside
// A reduce-scatter or all-gather is half an all-reduce by ring; only an
// all-reduce has a tree. An exchange of blocks of S bytes is send_seconds().
// Size 1 takes no time.
double collective_seconds(
    const Machine& machine,
    const GroupPlace& place,
    Collective collective,
    Algorithm algorithm,
    double bytes);

struct CollectiveChoice {
  double seconds = 0;
  Algorithm algorithm = Algorithm::kRing;
};
// The quickest of the algorithms.
CollectiveChoice quickest_collective(
    const Machine& machine,
    const GroupPlace& place,
    Collective collective,
    double bytes);

// Whether Machine::collectives has two samples of this collective among as many
// ranks of one node.
bool is_sampled(
    const Machine& machine,
    const GroupPlace& place,
    Collective collective);
// As they say, in between and beyond on a straight line, and less than the
// smallest takes as long as it; where it has none, quickest_collective().
double sampled_seconds(
    const Machine& machine,
    const GroupPlace& place,
    Collective collective,
    double bytes);

// Every rank in turn broadcasts its n-th part of `bytes` to the others.
double owner_broadcasts_seconds(
    const Machine& machine,
    const GroupPlace& place,
    double bytes);

// One tensor from a rank to its neighbour along an axis, all pairs at once.
double
send_seconds(const Machine& machine, const GroupPlace& place, double bytes);

}  // namespace brigade::planner

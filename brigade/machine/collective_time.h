// How long collectives take on the real topology: which ranks share a node, and
// which share that node's network cards.
//
// PURE.
#pragma once

#include "brigade/machine/machine.h"

namespace brigade::machine {

// One group of a communicator as it lies on the nodes. All groups of a kind lie
// the same way and work at the same time, so those on one node share its
// network.
struct GroupPlace {
  int ranks = 1;
  int ranks_per_node = 1;
  int nodes() const { return (ranks + ranks_per_node - 1) / ranks_per_node; }
  bool operator==(const GroupPlace&) const = default;
};

// Software's fixed cost of a collective: NCCL's tuning tables (base latency of
// its Simple protocol).
inline constexpr double kLaunchSeconds = 8.4e-6;

enum class Algorithm { kRing, kTree, kHierarchical };

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

// The time of the quickest algorithm.
double quickest_collective(
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

// One tensor from a rank to its neighbour along an axis, all pairs at once.
double
send_seconds(const Machine& machine, const GroupPlace& place, double bytes);

// Every rank's `bytes`, in equal parts for each rank of the group, itself
// included: those for ranks of its node and those for others go at the same
// time, and all messages at once.
double all_to_all_seconds(
    const Machine& machine,
    const GroupPlace& place,
    double bytes);

}  // namespace brigade::machine

#include "brigade/planner/collective_time.h"

#include <algorithm>
#include <cmath>

#include "brigade/base/check.h"

namespace brigade::planner {
namespace {

// Software's fixed cost of a collective: NCCL's tuning tables (base latency of
// its Simple protocol).
constexpr double kLaunch = 8.4e-6;

int stride_of(const ParallelDims& dims, Axis axis, RankOrder order) {
  switch (axis) {
    case Axis::kTp:
      return 1;
    case Axis::kCp:
      return dims.tp;
    case Axis::kPp:
      return dims.tp * dims.cp * (order == RankOrder::kPpDpCpTp ? dims.dp : 1);
    case Axis::kDp:
      return dims.tp * dims.cp * (order == RankOrder::kDpPpCpTp ? dims.pp : 1);
  }
  return 1;
}

// Members of a group of `size` ranks that many apart, on one node.
int on_one_node(int size, int stride, int devices_per_node) {
  return std::clamp(devices_per_node / stride, 1, size);
}

// Of one rank of the group into the network: the node's cards are shared by
// all its devices, because all groups work at once.
double network_bytes_per_s(const Machine& machine) {
  return machine.inter.bytes_per_s * machine.inter.efficiency /
         machine.devices_per_node;
}

double intra_bytes_per_s(const Machine& machine) {
  return machine.intra.bytes_per_s * machine.intra.efficiency;
}

// A ring enters and leaves each node once, so its members' shares of the
// network add up.
double ring_bytes_per_s(const Machine& machine, const GroupPlace& place) {
  if (place.nodes() == 1)
    return intra_bytes_per_s(machine);
  return std::min(
      intra_bytes_per_s(machine),
      network_bytes_per_s(machine) * place.ranks_per_node);
}

// One way round: (n-1)/n of the bytes, n-1 steps.
double
half_ring(const Machine& machine, const GroupPlace& place, double bytes) {
  const int n = place.ranks;
  const int across = place.nodes() == 1 ? 0 : place.nodes();
  return (n - 1.0) / n * bytes / ring_bytes_per_s(machine, place) +
         std::max(0, n - 1 - across) * machine.intra.latency_s +
         across * machine.inter.latency_s;
}

double hierarchical(
    const Machine& machine,
    const GroupPlace& place,
    double halves,
    double bytes) {
  const GroupPlace inside = {place.ranks_per_node, place.ranks_per_node};
  const GroupPlace across = {place.nodes(), 1};
  const double shard = bytes / place.ranks_per_node;
  return halves * (half_ring(machine, inside, bytes) +
                   half_ring(machine, across, shard) + kLaunch);
}

struct SamplePair {
  const CollectiveSample* low = nullptr;  // null: there are no two
  const CollectiveSample* high = nullptr;
};

// The two samples on whose line `bytes` lies, or is nearest to.
SamplePair samples_around(
    const Machine& machine,
    const GroupPlace& place,
    Collective collective,
    double bytes) {
  SamplePair pair;
  if (place.nodes() > 1)
    return pair;
  for (const CollectiveSample& sample : machine.collectives) {
    if (sample.collective != collective || sample.ranks != place.ranks)
      continue;
    if (pair.low == nullptr || static_cast<double>(pair.high->bytes) < bytes)
      pair = {pair.high, &sample};
  }
  return pair;
}

}  // namespace

GroupPlace place_axis(
    const ParallelDims& dims,
    Axis axis,
    RankOrder order,
    int devices_per_node) {
  return {
      dims[axis],
      on_one_node(dims[axis], stride_of(dims, axis, order), devices_per_node)};
}

GroupPlace
place_dp_cp(const ParallelDims& dims, RankOrder order, int devices_per_node) {
  const GroupPlace cp = place_axis(dims, Axis::kCp, order, devices_per_node);
  const GroupPlace dp = place_axis(dims, Axis::kDp, order, devices_per_node);
  return {dims.dp * dims.cp, cp.ranks_per_node * dp.ranks_per_node};
}

const char* to_string(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kTree:
      return "tree";
    case Algorithm::kHierarchical:
      return "hierarchical";
  }
  return "?";
}

double collective_seconds(
    const Machine& machine,
    const GroupPlace& place,
    Collective collective,
    Algorithm algorithm,
    double bytes) {
  if (place.ranks <= 1)
    return 0;
  if (collective == Collective::kExchange)
    return send_seconds(machine, place, bytes);
  const double halves = collective == Collective::kAllReduce ? 2 : 1;
  switch (algorithm) {
    case Algorithm::kRing:
      return kLaunch + halves * half_ring(machine, place, bytes);
    case Algorithm::kTree: {
      BRIGADE_ASSERT(
          collective == Collective::kAllReduce, "only an all-reduce is a tree");
      return kLaunch + 2 * bytes / ring_bytes_per_s(machine, place) +
             2 * (place.ranks_per_node - 1) * machine.intra.latency_s +
             2 * std::log2(static_cast<double>(place.nodes())) *
                 machine.inter.latency_s;
    }
    case Algorithm::kHierarchical:
      return hierarchical(machine, place, halves, bytes);
  }
  return 0;
}

CollectiveChoice quickest_collective(
    const Machine& machine,
    const GroupPlace& place,
    Collective collective,
    double bytes) {
  CollectiveChoice best = {
      collective_seconds(machine, place, collective, Algorithm::kRing, bytes),
      Algorithm::kRing};
  const auto consider = [&](Algorithm algorithm) {
    const double seconds =
        collective_seconds(machine, place, collective, algorithm, bytes);
    if (seconds < best.seconds)
      best = {seconds, algorithm};
  };
  if (collective == Collective::kAllReduce)
    consider(Algorithm::kTree);
  if (place.nodes() > 1 && place.ranks_per_node > 1 &&
      collective != Collective::kExchange)
    consider(Algorithm::kHierarchical);
  return best;
}

bool is_sampled(
    const Machine& machine,
    const GroupPlace& place,
    Collective collective) {
  return samples_around(machine, place, collective, 0).low != nullptr;
}

double sampled_seconds(
    const Machine& machine,
    const GroupPlace& place,
    Collective collective,
    double bytes) {
  if (place.ranks <= 1)
    return 0;
  const auto [low, high] = samples_around(machine, place, collective, bytes);
  if (low == nullptr)
    return quickest_collective(machine, place, collective, bytes).seconds;
  // Less than the smallest takes as long as it.
  if (bytes <= static_cast<double>(low->bytes))
    return low->seconds;
  const double slope = std::max(0.0, high->seconds - low->seconds) /
                       static_cast<double>(high->bytes - low->bytes);
  return low->seconds + slope * (bytes - static_cast<double>(low->bytes));
}

double owner_broadcasts_seconds(
    const Machine& machine,
    const GroupPlace& place,
    double bytes) {
  if (place.ranks <= 1)
    return 0;
  const bool crosses = place.nodes() > 1;
  // One source at a time has a card to itself.
  const double card = machine.inter.bytes_per_s * machine.inter.efficiency /
                      machine.cards_per_node;
  const double bytes_per_s = crosses
                                 ? std::min(card, intra_bytes_per_s(machine))
                                 : intra_bytes_per_s(machine);
  const double hops =
      (place.ranks_per_node - 1) * machine.intra.latency_s +
      std::log2(static_cast<double>(place.nodes())) * machine.inter.latency_s;
  return bytes / bytes_per_s + place.ranks * (kLaunch + hops);
}

double
send_seconds(const Machine& machine, const GroupPlace& place, double bytes) {
  if (place.ranks <= 1 || bytes <= 0)
    return 0;
  // Neighbours on one node where any are; the slowest pair is waited for.
  const bool crosses = place.nodes() > 1;
  const Link& link = crosses ? machine.inter : machine.intra;
  const double bytes_per_s =
      crosses ? network_bytes_per_s(machine) * place.ranks_per_node
              : intra_bytes_per_s(machine);
  return kLaunch + link.latency_s +
         bytes / std::min(bytes_per_s, intra_bytes_per_s(machine));
}

}  // namespace brigade::planner

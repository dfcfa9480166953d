#include "brigade/machine/collective_time.h"

#include <algorithm>
#include <cmath>

#include "brigade/base/check.h"

namespace brigade::machine {
namespace {

// What one rank of the group reaches into the network: the node's cards are
// shared by all its devices, because all groups work at once.
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
                   half_ring(machine, across, shard) + kLaunchSeconds);
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
      return kLaunchSeconds + halves * half_ring(machine, place, bytes);
    case Algorithm::kTree: {
      BRIGADE_ASSERT(
          collective == Collective::kAllReduce, "only an all-reduce is a tree");
      return kLaunchSeconds + 2 * bytes / ring_bytes_per_s(machine, place) +
             2 * (place.ranks_per_node - 1) * machine.intra.latency_s +
             2 * std::log2(static_cast<double>(place.nodes())) *
                 machine.inter.latency_s;
    }
    case Algorithm::kHierarchical:
      return hierarchical(machine, place, halves, bytes);
  }
  return 0;
}

double quickest_collective(
    const Machine& machine,
    const GroupPlace& place,
    Collective collective,
    double bytes) {
  const auto seconds = [&](Algorithm algorithm) {
    return collective_seconds(machine, place, collective, algorithm, bytes);
  };
  double best = seconds(Algorithm::kRing);
  if (collective == Collective::kAllReduce)
    best = std::min(best, seconds(Algorithm::kTree));
  if (place.nodes() > 1 && place.ranks_per_node > 1 &&
      collective != Collective::kExchange)
    best = std::min(best, seconds(Algorithm::kHierarchical));
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
    return quickest_collective(machine, place, collective, bytes);
  // Less than the smallest takes as long as it.
  if (bytes <= static_cast<double>(low->bytes))
    return low->seconds;
  const double slope = std::max(0.0, high->seconds - low->seconds) /
                       static_cast<double>(high->bytes - low->bytes);
  return low->seconds + slope * (bytes - static_cast<double>(low->bytes));
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
  return kLaunchSeconds + link.latency_s +
         bytes / std::min(bytes_per_s, intra_bytes_per_s(machine));
}

double all_to_all_seconds(
    const Machine& machine,
    const GroupPlace& place,
    double bytes) {
  if (place.ranks <= 1 || bytes <= 0)
    return 0;
  const bool crosses = place.nodes() > 1;
  const double per_rank = bytes / place.ranks;
  const double inside =
      per_rank * (place.ranks_per_node - 1) / intra_bytes_per_s(machine);
  const double across = crosses
                            ? per_rank * (place.ranks - place.ranks_per_node) /
                                  network_bytes_per_s(machine)
                            : 0;
  const Link& link = crosses ? machine.inter : machine.intra;
  return kLaunchSeconds + link.latency_s + std::max(inside, across);
}

}  // namespace brigade::machine

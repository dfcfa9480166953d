// How groups of ranks communicate: distributed.backend and
// distributed.hierarchical_reduction. PURE.
#pragma once

#include "brigade/options/choice.h"

namespace brigade {

// What carries the collectives of a group.
enum class Backend {
  kGloo,  // TCP between CPUs
  kNccl,  // between GPUs
  kMpi,   // what the cluster's MPI uses
};
// As the config spells them.
template <>
inline constexpr std::array kChoices<Backend>{
    Choice{Backend::kGloo, "gloo"},
    Choice{Backend::kNccl, "nccl"},
    Choice{Backend::kMpi, "mpi"}};

// Whether sums over dp x cp go by host (comm/sums/hierarchical_communicator.h).
enum class HierarchyChoice {
  kAuto,  // where hosts have several of its ranks each
  kOn,    // a ConfigError where they have not
  kOff,
};
// As the config spells them.
template <>
inline constexpr std::array kChoices<HierarchyChoice>{
    Choice{HierarchyChoice::kAuto, "auto"},
    Choice{HierarchyChoice::kOn, "on"},
    Choice{HierarchyChoice::kOff, "off"}};

}  // namespace brigade

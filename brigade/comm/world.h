// The ranks of a program and their rendezvous, for each launcher: torchrun,
// mpirun, srun, `brigade run`, or one process on its own.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "brigade/base/error.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/comm/start/start_facts.h"
#include "brigade/launch/environment.h"

namespace brigade {

// The options of init_from_environment().
struct WorldOptions {
  Backend backend = Backend::kGloo;
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  // Compare every collective's signature across ranks first; also switched on
  // by BRIGADE_CHECK_COLLECTIVES=1.
  bool check_collectives = false;
  // Sizes of the axes. dp is not read: it is the number of ranks divided by the
  // others.
  ParallelDims dims;
};

class World {
 public:
  World(LaunchEnvironment environment, std::unique_ptr<ProcessMesh> mesh)
      : environment_(std::move(environment)), mesh_(std::move(mesh)) {}

  int rank() const { return environment_.rank; }
  int size() const { return environment_.world_size; }
  int local_rank() const { return environment_.local_rank; }
  const ProcessMesh& mesh() const { return *mesh_; }
  // The device of modules that are wrapped over this world's groups.
  const torch::Device& device() const { return mesh_->device(); }
  // The replicas of this rank's weights: what DataParallel sums over.
  const CommunicatorPtr& data_parallel() const { return mesh_->dp_cp(); }

 private:
  LaunchEnvironment environment_;
  std::unique_ptr<ProcessMesh> mesh_;
};

// Collective over all ranks that the launcher started; may be called again.
// Throws ConfigError if the launcher's variables contradict one another or the
// axes do not divide the ranks, CommError if not all ranks arrive within the
// timeout.
World init_from_environment(const WorldOptions& options = {});

// The store that an environment names.
StorePtr open_store(
    const LaunchEnvironment& environment,
    std::chrono::milliseconds timeout);

// The options of open_mesh().
struct MeshStart {
  // The backend of the mesh's groups. With NCCL their device is the GPU of the
  // rank's number on its host, which becomes the calling thread's current one.
  Backend backend = Backend::kGloo;
  HierarchyChoice hierarchy = HierarchyChoice::kAuto;
  // The store of the rendezvous; null: open_store().
  StorePtr store;
  // Runs before this rank has peers. An Error that it throws ends the start of
  // all ranks with this first cause. Empty: nothing to check.
  std::function<StartFacts()> prepare;
  // Called on rank 0 with progress and warnings, one line each; may be empty.
  std::function<void(const std::string&)> on_message;
};

// A mesh over the ranks of an environment. Collective. Throws an Error with the
// first cause if a rank cannot start, if their facts differ, or if a rank on
// one of several hosts has only a loopback address to offer, and what
// check_backend() throws.
std::unique_ptr<ProcessMesh> open_mesh(
    const ParallelDims& dims,
    const LaunchEnvironment& environment,
    const CommunicatorOptions& options,
    const MeshStart& start = {});

// Called by a rank that fails before open_mesh(), while others wait there: they
// end with this cause. Does nothing for ranks of our own supervisor, which ends
// them. Does not throw.
void announce_failed_start(
    const LaunchEnvironment& environment,
    const Error& cause) noexcept;

}  // namespace brigade

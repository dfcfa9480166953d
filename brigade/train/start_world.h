// From the launch environment to a mesh of ranks that agree on the run.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/launch/environment.h"

namespace brigade {

struct WorldStart {
  // The store of the rendezvous; null: the one that the environment names.
  StorePtr store;
  // Records this rank's operations; null: they are not recorded.
  FlightRecorderPtr flight_recorder;
  // What can fail without peers; an Error in it ends the start of all ranks.
  // Empty: nothing.
  std::function<void()> prepare;
  // Looked up after prepare(): as the config names them, compared across ranks
  // by size and the digest of their ends.
  std::vector<std::string> datasets;
  // Called after prepare(), on rank 0: what all hosts must share. Empty:
  // nothing.
  std::function<std::filesystem::path()> shared_folder;
};

// Collective over all ranks. Throws the same Error on every rank, naming rank
// and host, when one cannot start, or when their program versions, configs
// (the keys that differ are named) or datasets differ. Rank 0 prints progress
// and warnings to stderr.
std::unique_ptr<ProcessMesh> start_world(
    const TrainConfig& config,
    const LaunchEnvironment& environment,
    const WorldStart& start = {});

}  // namespace brigade

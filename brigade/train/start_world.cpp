#include "brigade/train/start_world.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>

#include "brigade/base/error.h"

namespace brigade {
namespace {

void check_configs_agree(const TrainConfig& config, Communicator& world) {
  const std::string hash = config_hash(config);
  const auto length = static_cast<int64_t>(hash.size());
  auto mine = torch::empty({length}, torch::kByte);
  std::memcpy(mine.data_ptr(), hash.data(), hash.size());
  auto all = torch::empty({world.size(), length}, torch::kByte);
  world.all_gather(all, mine)->wait();
  for (int rank = 1; rank < world.size(); ++rank) {
    if (torch::equal(all[rank], all[0]))
      continue;
    const auto text_of = [&](int r) {
      const auto row = all[r];
      return std::string(static_cast<const char*>(row.data_ptr()), hash.size());
    };
    throw ConfigError(fmt::format(
        "[start_world] ranks were started with different configs: rank 0 has "
        "{}, rank {} has {}; give every rank the same file and overrides",
        text_of(0),
        rank,
        text_of(rank)));
  }
}

}  // namespace

StorePtr open_store(
    const LaunchEnvironment& environment,
    std::chrono::milliseconds timeout) {
  const StoreAddress& address = environment.store;
  StorePtr store;
  if (address.kind == StoreAddress::Kind::kFile) {
    store = make_file_store(address.file, environment.world_size, timeout);
  } else {
    store = make_tcp_store(
        address.host,
        address.port,
        environment.rank == 0 && !address.is_served,
        environment.world_size,
        timeout);
  }
  // A store may outlive a restart of the ranks.
  return store->with_prefix(
      fmt::format("restart-{}", environment.restart_count));
}

std::unique_ptr<ProcessMesh> start_world(
    const TrainConfig& config,
    const LaunchEnvironment& environment) {
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(config.distributed.timeout_seconds);
  options.check_collectives = config.distributed.check_collectives;
  GlooOptions gloo;
  if (environment.local_world_size < environment.world_size)
    gloo.interface = "";
  StorePtr store;
  if (environment.world_size > 1)
    store = open_store(environment, options.timeout);
  auto mesh = std::make_unique<ProcessMesh>(
      config.parallel_dims(), environment.rank, store, options, gloo);
  check_configs_agree(config, *mesh->world());
  return mesh;
}

}  // namespace brigade

#include "brigade/comm/world.h"

#include <fmt/format.h>

#include <utility>

#include "brigade/base/error.h"

namespace brigade {

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

std::unique_ptr<ProcessMesh> open_mesh(
    const ParallelDims& dims,
    const LaunchEnvironment& environment,
    const CommunicatorOptions& options,
    StorePtr store) {
  GlooOptions gloo;
  if (environment.world_size > 1)
    gloo.interface = network_interface(environment);
  if (!store && environment.world_size > 1)
    store = open_store(environment, options.timeout);
  return std::make_unique<ProcessMesh>(
      dims, environment.rank, store, options, gloo);
}

World init_from_environment(const WorldOptions& options) {
  const GetEnv variables = process_environment();
  LaunchEnvironment environment = read_environment(variables);
  const int rest = options.tp * options.pp * options.cp;
  const ParallelDims dims{
      .dp = rest > 0 ? environment.world_size / rest : 0,
      .tp = options.tp,
      .pp = options.pp,
      .cp = options.cp};
  std::vector<std::string> problems;
  dims.validate(environment.world_size, problems);
  if (!problems.empty())
    throw ConfigError(problems);
  CommunicatorOptions communicator;
  communicator.timeout = options.timeout;
  communicator.check_collectives =
      options.check_collectives ||
      variables("BRIGADE_CHECK_COLLECTIVES") == "1";
  auto mesh = open_mesh(dims, environment, communicator);
  return {std::move(environment), std::move(mesh)};
}

}  // namespace brigade

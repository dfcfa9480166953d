#include "brigade/comm/world.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "brigade/comm/device_stream.h"
#include "brigade/comm/start/start_rendezvous.h"
#include "brigade/launch/network.h"
#include "brigade/topology/hosts.h"

namespace brigade {

StorePtr open_store(
    const LaunchEnvironment& environment,
    std::chrono::milliseconds timeout) {
  const StoreAddress& address = environment.store;
  const bool use_agents = address.is_served && can_use_agent_store();
  if (address.kind == StoreAddress::Kind::kTcp && !use_agents) {
    // This store ends with rank 0, so its keys need no number of restarts,
    // which the hosts of an elastic launcher count differently.
    return make_tcp_store(
        address.host,
        address.is_served ? address.own_port : address.port,
        environment.rank == 0,
        environment.world_size,
        timeout);
  }
  const StorePtr store =
      use_agents
          ? make_tcp_store(
                address.host,
                address.port,
                /*serves=*/false,
                environment.world_size,
                timeout)
          : make_file_store(address.file, environment.world_size, timeout);
  // This store outlives a restart of the ranks.
  return store->with_prefix(
      fmt::format("restart-{}", environment.restart_count));
}

namespace {

// Counts the rendezvous of a process, each of which has keys of its own. The
// counts are equal on all ranks, because a rendezvous is collective.
struct Rendezvous {
  std::mutex mutex;
  int count = 0;
  // Kept until the process ends: rank 0's may be the server, and libtorch
  // removes a store's file once as many stores as ranks have ended.
  StorePtr store;

  // The store of the next rendezvous, with the timeout of the first call.
  StorePtr next_store(
      const LaunchEnvironment& environment,
      std::chrono::milliseconds timeout) {
    const std::lock_guard lock(mutex);
    if (!store)
      store = open_store(environment, timeout);
    return store->with_prefix(fmt::format("meeting-{}", ++count));
  }
};

StartRendezvousOptions rendezvous_options(
    const LaunchEnvironment& environment,
    std::chrono::milliseconds timeout,
    const MeshStart& start = {}) {
  StartRendezvousOptions options{
      .rank = environment.rank,
      .size = environment.world_size,
      .host = host_name(),
      .timeout = timeout};
  options.on_progress = start.on_message;
  return options;
}

// Warns if the user may think that nobody else can connect.
void warn_of_open_port(
    const LaunchEnvironment& environment,
    const MeshStart& start) {
  const StoreAddress& store = environment.store;
  const bool serves = environment.rank == 0 && !start.store &&
                      store.kind == StoreAddress::Kind::kTcp &&
                      !(store.is_served && can_use_agent_store());
  if (!serves || !start.on_message || can_bind_store_to_loopback() ||
      !is_loopback_name(store.host))
    return;
  start.on_message(fmt::format(
      "note: MASTER_ADDR is {}, but port {} is open on every network interface "
      "while the ranks meet and train: this libtorch's store cannot be bound "
      "to one",
      store.host,
      store.is_served ? store.own_port : store.port));
}

// The error of base/error.h that this exception is or stands for.
Error as_error(const std::exception& exception) {
  const auto* error = dynamic_cast<const Error*>(&exception);
  return error != nullptr ? *error
                          : Error(ExitCode::kUnexpected, exception.what());
}

}  // namespace

std::unique_ptr<ProcessMesh> open_mesh(
    const ParallelDims& dims,
    const LaunchEnvironment& environment,
    const CommunicatorOptions& options,
    const MeshStart& start) {
  const auto prepared = [&] {
    return start.prepare ? start.prepare() : StartFacts{};
  };
  CommunicatorOptions named = options;
  if (start.backend == Backend::kNccl)
    named.device = device_of(start.backend, environment);
  if (environment.world_size == 1) {
    check_backend(start.backend, environment);
    prepared();
    use_device(named.device);
    BackendOptions backend;
    backend.hierarchy = start.hierarchy;
    return std::make_unique<ProcessMesh>(dims, 0, start.store, named, backend);
  }
  const StorePtr store =
      start.store ? start.store : open_store(environment, options.timeout);
  warn_of_open_port(environment, start);
  StartRendezvous rendezvous(
      store, rendezvous_options(environment, options.timeout, start));
  PeerAddress address;
  StartFacts facts;
  try {
    check_backend(start.backend, environment);
    address = peer_address(environment);
    facts = prepared();
  } catch (const std::exception& exception) {
    // Our supervisor ends the others by itself, and reports this rank first.
    if (environment.launcher != "brigade")
      rendezvous.fail(as_error(exception));
    throw;
  }
  const auto hosts =
      agree_on_start(rendezvous, environment, {host_name(), address, facts});
  if (environment.rank == 0 && start.on_message) {
    for (const std::string& warning : warn_of_split_groups(dims, hosts))
      start.on_message("warning: " + warning);
  }
  const BackendOptions backend{
      .backend = start.backend,
      .gloo = {.interface = address.interface, .address = address.address},
      .hosts = hosts,
      .hierarchy = start.hierarchy};
  named.member_names = rank_names(dims, hosts);
  use_device(named.device);
  return std::make_unique<ProcessMesh>(
      dims, environment.rank, store, std::move(named), backend);
}

void announce_failed_start(
    const LaunchEnvironment& environment,
    const Error& cause) noexcept {
  if (environment.world_size == 1 || environment.launcher == "brigade")
    return;
  constexpr std::chrono::seconds kTimeout{30};
  try {
    StartRendezvous(
        open_store(environment, kTimeout),
        rendezvous_options(environment, kTimeout))
        .fail(cause);
  } catch (const std::exception&) {
    // The store cannot be reached: the launcher ends the others, or their
    // timeout does.
  }
}

World init_from_environment(const WorldOptions& options) {
  static Rendezvous rendezvous;
  const GetEnv variables = process_environment();
  LaunchEnvironment environment = read_environment(variables);
  const ParallelDims dims = options.dims.with_rest_for(environment.world_size);
  std::vector<std::string> problems;
  dims.validate(environment.world_size, problems);
  if (!problems.empty())
    throw ConfigError(problems);
  CommunicatorOptions communicator;
  communicator.timeout = options.timeout;
  communicator.check_collectives =
      options.check_collectives ||
      variables("BRIGADE_CHECK_COLLECTIVES") == "1";
  MeshStart start{.backend = options.backend};
  if (environment.world_size > 1)
    start.store = rendezvous.next_store(environment, options.timeout);
  auto mesh = open_mesh(dims, environment, communicator, start);
  return {std::move(environment), std::move(mesh)};
}

}  // namespace brigade

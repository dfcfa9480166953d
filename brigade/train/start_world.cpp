#include "brigade/train/start_world.h"

#include <fmt/format.h>

#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/comm/world.h"
#include "brigade/train/from_config.h"

namespace brigade {
namespace {

void check_configs_agree(const TrainConfig& config, Communicator& world) {
  const auto found = Agreement(world).find_difference(config_hash(config));
  if (!found)
    return;
  throw ConfigError(fmt::format(
      "[start_world] ranks were started with different configs: rank 0 has {}, "
      "rank {} has {}; give every rank the same file and overrides",
      found->of_rank_0,
      found->rank,
      found->of_rank));
}

}  // namespace

std::unique_ptr<ProcessMesh> start_world(
    const TrainConfig& config,
    const LaunchEnvironment& environment,
    StorePtr store) {
  auto mesh = open_mesh(
      config.parallel_dims(),
      environment,
      communicator_options(config.distributed),
      std::move(store));
  check_configs_agree(config, *mesh->world());
  return mesh;
}

}  // namespace brigade

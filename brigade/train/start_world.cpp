#include "brigade/train/start_world.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/world.h"

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

std::string from_rank_0(const std::string& text, Communicator& world) {
  auto length =
      torch::full({1}, static_cast<int64_t>(text.size()), torch::kLong);
  world.broadcast(length, 0)->wait();
  auto bytes = torch::empty({length.item<int64_t>()}, torch::kByte);
  if (world.rank() == 0)
    std::memcpy(bytes.data_ptr(), text.data(), text.size());
  world.broadcast(bytes, 0)->wait();
  return {
      static_cast<const char*>(bytes.data_ptr()),
      static_cast<size_t>(bytes.numel())};
}

std::unique_ptr<ProcessMesh> start_world(
    const TrainConfig& config,
    const LaunchEnvironment& environment,
    StorePtr store) {
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(config.distributed.timeout_seconds);
  options.check_collectives = config.distributed.check_collectives;
  auto mesh =
      open_mesh(config.parallel_dims(), environment, options, std::move(store));
  check_configs_agree(config, *mesh->world());
  return mesh;
}

}  // namespace brigade

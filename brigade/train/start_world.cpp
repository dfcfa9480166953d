#include "brigade/train/start_world.h"

#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "brigade/base/version.h"
#include "brigade/comm/world.h"
#include "brigade/files/file.h"
#include "brigade/files/fingerprint.h"
#include "brigade/json/parse.h"
#include "brigade/train/from_config.h"

namespace brigade {
namespace {

// The files of a dataset as the config names it: one, or PREFIX.bin, PREFIX.idx
// and what may lie beside them.
std::string fingerprint_of_dataset(const std::string& name) {
  std::string text;
  for (const char* suffix : {"", ".bin", ".idx", ".mask", ".reference.json"}) {
    const auto path = with_suffix(name, suffix);
    if (!std::filesystem::is_regular_file(path))
      continue;
    text += fmt::format(
        "{}{}", text.empty() ? "" : " and ", fingerprint_of_file(path));
  }
  return text;
}

// By dotted key; what config_hash() leaves out is left out.
std::map<std::string, std::string> config_entries(const TrainConfig& config) {
  std::map<std::string, std::string> entries;
  const nlohmann::json facts = config_facts(config);
  for (const auto& [group, keys] : facts.items()) {
    for (const auto& [key, value] : keys.items())
      entries[group + "." + key] = json_to_text(value);
  }
  return entries;
}

StartFacts facts_of(
    const TrainConfig& config,
    const LaunchEnvironment& environment,
    const WorldStart& start) {
  if (start.prepare)
    start.prepare();
  StartFacts facts;
  facts.facts = {
      {"the kind of device it trains on",
       config.trains_on_gpus() ? "GPU" : "CPU",
       "set the same distributed.use_cpu on every host, and use a build with "
       "CUDA on all of them or on none"},
      {"the program's version",
       version(),
       "install the same version on every host"},
      {"the config",
       config_hash(config),
       "give every rank the same file and overrides",
       config_entries(config)}};
  for (const std::string& name : start.datasets) {
    facts.facts.push_back(
        {fmt::format("the data '{}'", name),
         fingerprint_of_dataset(name),
         "give every host the same files"});
  }
  if (start.shared_folder && environment.rank == 0)
    facts.shared_folder = start.shared_folder();
  return facts;
}

}  // namespace

std::unique_ptr<ProcessMesh> start_world(
    const TrainConfig& config,
    const LaunchEnvironment& environment,
    const WorldStart& start) {
  CommunicatorOptions options = communicator_options(config.distributed);
  options.flight_recorder = start.flight_recorder;
  auto mesh = open_mesh(
      config.parallel_dims(),
      environment,
      options,
      {.backend = backend_of(config.distributed),
       .hierarchy = config.distributed.hierarchical_reduction,
       .store = start.store,
       .prepare = [&] { return facts_of(config, environment, start); },
       .on_message =
           [](const std::string& message) {
             std::fputs((message + "\n").c_str(), stderr);
             std::fflush(stderr);
           }});
  mesh->divide_replicas(config.distributed.replica_groups());
  return mesh;
}

}  // namespace brigade

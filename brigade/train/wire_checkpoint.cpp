#include "brigade/train/wire_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "brigade/config/keys.h"
#include "brigade/schedule/fragment_schedule.h"

namespace brigade {
namespace {

// Whose errors they are: what each rank sums, and with whom.
std::vector<std::string> keys_of_errors() {
  std::vector<std::string> keys = {"grad_wire", "powersgd_rank"};
  for (const Axis axis : kNamedAxes)
    keys.push_back(size_key_of(axis));
  keys.insert(
      keys.end(),
      {"ep_size",
       "pp_engine",
       "pp_virtual_stages",
       "pp_layers",
       "sequence_parallel",
       "local_groups"});
  return keys;
}

std::string rank_prefix(int rank) {
  return fmt::format("wire.{}.", rank);
}

// A key that an older checkpoint lacks has its default.
FragmentSchedule saved_rounds(const nlohmann::json& config) {
  TrainConfig read;
  read_saved_group(config, "distributed", read);
  return read.distributed.rounds;
}

// "" where errors of `saved`, after step `step`, are those of a run with `now`.
std::string difference_of_ranks(
    const nlohmann::json& saved,
    const nlohmann::json& now,
    int64_t step) {
  const auto value = [](const nlohmann::json& config, const std::string& key) {
    const auto group = config.find("distributed");
    // Checkpoints of before an axis was there do not have its size.
    const auto absent =
        key.ends_with("_size") ? nlohmann::json(1) : nlohmann::json();
    return group == config.end() ? absent : group->value(key, absent);
  };
  for (const std::string& key : keys_of_errors()) {
    if (value(saved, key) != value(now, key))
      return fmt::format(
          "distributed.{} was {} when saved, and is {} now",
          key,
          value(saved, key).dump(),
          value(now, key).dump());
  }
  const FragmentSchedule then = saved_rounds(saved);
  const FragmentSchedule rounds = saved_rounds(now);
  if ((then.local_steps > 0) != (rounds.local_steps > 0))
    return "distributed.local_steps was switched on or off";
  if (is_data_parallel(then, step) != is_data_parallel(rounds, step))
    return "the warm-up of low-communication training is another one";
  return {};
}

}  // namespace

void add_wire_parts(
    int rank,
    const std::vector<std::unique_ptr<StageRuntime>>& stages,
    CheckpointToSave& checkpoint) {
  for (const auto& stage : stages) {
    for (const State& kept : stage->wire_memory().tensors())
      checkpoint.optimizer.push_back(
          {.name = rank_prefix(rank) + kept.name, .tensor = kept.tensor});
  }
}

std::string load_wire_parts(
    const Checkpoint& checkpoint,
    const TrainConfig& config,
    const ProcessMesh& mesh,
    const std::vector<std::unique_ptr<StageRuntime>>& stages) {
  const std::vector<std::string> names = checkpoint.names();
  const bool has_errors =
      std::any_of(names.begin(), names.end(), [](const std::string& name) {
        return name.starts_with("wire.");
      });
  const GradWire wire = config.distributed.grad_wire;
  const bool keeps_errors =
      wire == GradWire::kInt8 || wire == GradWire::kPowerSgd;
  if (!has_errors) {
    return keeps_errors && mesh.replicas()->size() > 1
               ? "the checkpoint has none"
               : "";
  }
  if (std::string difference = difference_of_ranks(
          checkpoint.manifest().config,
          to_json(config),
          checkpoint.manifest().step);
      !difference.empty())
    return difference;
  // The step after the first begins with new buckets, and without errors.
  if (config.distributed.bucket_order == BucketOrder::kObserved)
    return "distributed.bucket_order = \"observed\" plans the buckets again";
  const std::string prefix = rank_prefix(mesh.rank());
  for (const std::string& name : names) {
    if (!name.starts_with(prefix))
      continue;
    const std::string kept = name.substr(prefix.size());
    const std::string param = kept.substr(kept.find('.') + 1);
    for (const auto& stage : stages) {
      if (stage->sync().param_set().index_of(param) >= 0)
        stage->wire_memory().restore({kept, checkpoint.read_whole(name)});
    }
  }
  return {};
}

}  // namespace brigade

#include "brigade/train/run_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/hugging_face_export.h"
#include "brigade/checkpoint/param_parts.h"
#include "brigade/checkpoint/verify.h"
#include "brigade/comm/agreement.h"
#include "brigade/comm/device_stream.h"
#include "brigade/config/model_layout.h"
#include "brigade/metrics/run_folder.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/ops/split_master.h"
#include "brigade/run/checkpoint_folder.h"
#include "brigade/run/resume_check.h"
#include "brigade/run/resume_rules.h"
#include "brigade/schedule/fragment_schedule.h"
#include "brigade/train/local_checkpoint.h"
#include "brigade/train/wire_checkpoint.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// Whether it has the value of the base model, whose folder keeps it.
bool is_of_base(const Param& param) {
  return param.row->stored_in == StoredIn::kBaseModel;
}

// A copy in the host's memory, which has room for it.
torch::Tensor own_copy(const torch::Tensor& tensor) {
  return tensor.is_cpu() ? tensor.clone() : to_host(tensor);
}

// Whether a rank holds a weight but for its own.
enum class WholeWeight { kStays, kIsFreed };

// Copies the moments and the low halves of masters; a weight that stays is not
// copied.
void own_copies(State& part, WholeWeight weights) {
  if (part.master_low.defined())
    part.master_low = own_copy(part.master_low);
  if (part.scales.defined())
    part.scales = own_copy(part.scales);
  if (!part.master_low.defined() || weights == WholeWeight::kIsFreed)
    part.tensor = own_copy(part.tensor);
}

// The files that come with the run: they make the checkpoint one that can
// generate, and that can be exported as the model came.
void attach_files(const TrainConfig& config, CheckpointToSave& checkpoint) {
  const std::string tokenizer = find_tokenizer(config);
  checkpoint.manifest.tokenizer = tokenizer;
  if (!tokenizer.empty() && fs::exists(tokenizer)) {
    checkpoint.manifest.tokenizer = "tokenizer";
    for (const FileToCopy& file :
         find_tokenizer_files(tokenizer, config.model.folder))
      checkpoint.attachments[file.source] = "tokenizer/" + file.name;
  }
  const fs::path generation = config.model.folder / kGenerationConfig;
  if (!config.model.folder.empty() && fs::exists(generation))
    checkpoint.attachments[generation] = kGenerationConfig;
}

std::string reason_to_reject(
    const fs::path& directory,
    VerifyLevel level,
    Communicator& world,
    RunObserver& observer) {
  return find_reason_to_reject(
      directory, level, world, [&](uint64_t done_bytes, uint64_t total_bytes) {
        observer.on_progress(
            {.what = "verifying " + directory.string(),
             .done = done_bytes,
             .total = total_bytes});
      });
}

// "" where it can be loaded and stands where its name says.
std::string reason_to_reject(
    const CheckpointEntry& entry,
    VerifyLevel level,
    Communicator& world,
    RunObserver& observer) {
  std::string reason =
      reason_to_reject(entry.directory, level, world, observer);
  if (!reason.empty())
    return reason;
  const int64_t step = read_manifest(entry.directory).step;
  if (step != entry.step)
    return fmt::format("its manifest is that of step {}", step);
  return {};
}

// The steps that rank 0 sees, newest first; another rank's view of a shared
// folder may lag behind.
std::vector<int64_t> steps_seen_by_rank_0(
    const fs::path& folder,
    Communicator& world) {
  nlohmann::json steps = nlohmann::json::array();
  if (world.rank() == 0) {
    for (const CheckpointEntry& entry : list_checkpoints(folder))
      steps.push_back(entry.step);
  }
  auto result = nlohmann::json::parse(Agreement(world).text_of(0, steps.dump()))
                    .get<std::vector<int64_t>>();
  std::reverse(result.begin(), result.end());
  return result;
}

std::optional<fs::path> find_newest_valid(
    const TrainConfig& config,
    Communicator& world,
    RunObserver& observer) {
  const fs::path folder = checkpoint_folder(config);
  const bool has_held =
      Agreement(world).max(
          world.rank() == 0 && has_held_checkpoints(folder) ? 1 : 0) == 1;
  if (!has_held) {
    observer.on_message(fmt::format(
        "'{}' holds no checkpoint yet: starting a new run", folder.string()));
    return std::nullopt;
  }
  const auto steps = steps_seen_by_rank_0(folder, world);
  for (const int64_t step : steps) {
    const CheckpointEntry entry{step, folder / std::to_string(step)};
    const std::string reason =
        reason_to_reject(entry, config.checkpoint.verify, world, observer);
    if (reason.empty())
      return entry.directory;
    observer.on_message(
        fmt::format("rejected '{}': {}", entry.directory.string(), reason));
  }
  throw DataError(fmt::format(
      "[checkpoint] '{}' held checkpoints, but none of the {} left is valid; "
      "give checkpoint.load_path a checkpoint from elsewhere, or remove the "
      "folder to start a new run",
      folder.string(),
      steps.size()));
}

// The samples so far; for an old checkpoint, as many steps of the batch that
// its config had.
int64_t samples_of(const CheckpointManifest& manifest) {
  if (manifest.samples >= 0)
    return manifest.samples;
  const auto number = [&](const char* group, const char* key) {
    return manifest.config.at(group).at(key).get<int64_t>();
  };
  try {
    return manifest.step * number("distributed", "dp_size") *
           number("training", "micro_batch_size") *
           number("training", "gradient_accumulation_steps");
  } catch (const nlohmann::json::exception&) {
    throw DataError(
        "[checkpoint] the manifest's config does not say how many sequences "
        "were trained on");
  }
}

// Where the stored weight is an average, the master is stored beside it, that
// of a bf16 weight in any case.
std::vector<State> optimizer_parts_of(
    const Optimizer& optimizer,
    const Param& param) {
  std::vector<State> parts = optimizer_parts(param);
  const bool is_master =
      param.states.empty() || param.state(kMasterLow).defined();
  if (optimizer.averages_weights() && !is_master)
    parts.push_back(part_of("master.", param, param.tensor));
  return parts;
}

torch::Tensor stored_weight(const Optimizer& optimizer, const Param& param) {
  if (!optimizer.averages_weights() || param.states.empty())
    return param.tensor;
  const torch::Tensor low = param.state(kMasterLow);
  const torch::Tensor master =
      low.defined()
          ? ops::join_master(param.tensor.contiguous(), low.contiguous())
          : param.tensor;
  return optimizer.average(master, param.states).to(param.tensor.scalar_type());
}

constexpr const char* kSteps = "steps";
constexpr const char* kScalars = "scalars";

// What set_optimizer() reads; null where the run's steps say it all.
nlohmann::json describe_optimizer(
    const Optimizer& optimizer,
    const RunPosition& position) {
  const auto scalars = optimizer.scalars();
  if (scalars.empty() &&
      optimizer.steps() == position.steps - position.skipped_steps)
    return {};
  return {{kSteps, optimizer.steps()}, {kScalars, scalars}};
}

// Groups that train apart may have skipped other steps: where they did, a list
// by group. All ranks.
nlohmann::json describe_optimizers(
    const Optimizer& optimizer,
    const RunPosition& position,
    const ProcessMesh& mesh) {
  nlohmann::json mine = describe_optimizer(optimizer, position);
  if (mesh.replica_groups() == 1)
    return mine;
  const auto texts = Agreement(*mesh.world()).texts(mine.dump());
  const int of_group = mesh.dims().dp / mesh.replica_groups();
  nlohmann::json all = nlohmann::json::array();
  for (int group = 0; group < mesh.replica_groups(); ++group)
    all.push_back(nlohmann::json::parse(texts[static_cast<size_t>(
        mesh.dims().rank({.dp = group * of_group}))]));
  const bool are_equal = std::all_of(
      all.begin(), all.end(), [&](const auto& each) { return each == all[0]; });
  return are_equal ? all[0] : all;
}

// `group`: this rank's of `groups`, those that train apart.
void set_optimizer(
    const CheckpointManifest& manifest,
    int group,
    int groups,
    Optimizer& optimizer) {
  nlohmann::json saved = manifest.optimizer;
  if (saved.is_array() && !saved.empty())
    saved = saved[std::ssize(saved) == groups ? static_cast<size_t>(group) : 0];
  if (saved.is_null()) {
    optimizer.set_steps(manifest.step - manifest.skipped_steps);
    return;
  }
  try {
    optimizer.set_steps(saved.at(kSteps).get<int64_t>());
    optimizer.set_scalars(
        saved.at(kScalars).get<std::map<std::string, double>>());
  } catch (const nlohmann::json::exception&) {
    throw DataError(
        "[checkpoint] the manifest's \"optimizer\" has not the steps and "
        "scalars of an optimizer");
  }
}

// The master of a float32 weight where the stored one is an average.
void read_float32_master(const Checkpoint& checkpoint, const Param& param) {
  if (!param.state(kMasterLow).defined() &&
      checkpoint.contains("master." + param.name))
    checkpoint.read(part_of("master.", param, param.tensor));
}

// The states of the same optimizer, and the master. A moving average that the
// checkpoint has not begins with the weights, momentum that was off with zero.
void read_states(const Checkpoint& checkpoint, const Param& param) {
  read_float32_master(checkpoint, param);
  const torch::Tensor low = param.state(kMasterLow);
  const std::string ema = kEma + ("." + param.name);
  const std::string momentum = "momentum_buffer." + param.name;
  for (const State& part : optimizer_parts(param)) {
    const bool may_lack = part.name == ema || part.name == momentum;
    if (!may_lack || checkpoint.contains(part.name))
      checkpoint.read(part);
  }
  if (torch::Tensor average = param.state(kEma);
      average.defined() && !checkpoint.contains(ema))
    average.copy_(
        low.defined() ? ops::join_master(param.tensor, low) : param.tensor);
}

// A master of another optimizer, which the stored weight is rounded from or an
// average of. Schedule-free AdamW's average is what it has found.
void read_master(
    const Checkpoint& checkpoint,
    const std::string& optimizer,
    const Param& param) {
  if (optimizer == to_string(OptimizerKind::kScheduleFreeAdamW))
    return;
  read_float32_master(checkpoint, param);
  if (param.state(kMasterLow).defined() &&
      checkpoint.contains("master." + param.name))
    checkpoint.read(master_part_of("master.", param));
}

}  // namespace

std::optional<fs::path> find_checkpoint_to_continue(
    const TrainConfig& config,
    Communicator& world,
    RunObserver& observer) {
  if (config.checkpoint.load_path.empty())
    return std::nullopt;
  if (config.checkpoint.load_path == "auto")
    return find_newest_valid(config, world, observer);
  const fs::path directory =
      Checkpoint(config.checkpoint.load_path).directory();
  const std::string reason =
      reason_to_reject(directory, config.checkpoint.verify, world, observer);
  if (!reason.empty())
    throw DataError(reason);
  return directory;
}

namespace {

// The schedule of the low-communication training that wrote the checkpoint; of
// data parallel, one that merges after each step.
FragmentSchedule saved_rounds(const nlohmann::json& config) {
  const auto number = [&](const std::string& key, auto& value) {
    const nlohmann::json::json_pointer place("/distributed/" + key);
    if (config.contains(place) && config[place].is_number_integer())
      config[place].get_to(value);
  };
  FragmentSchedule schedule;
  number("local_steps", schedule.local_steps);
  if (schedule.local_steps < 1)
    return {};
  number("outer_fragments", schedule.fragments);
  number("outer_delay", schedule.delay);
  number("local_warmup_steps", schedule.warmup_steps);
  number("local_warmup_interval", schedule.warmup_interval);
  return schedule;
}

}  // namespace

LoadedRun load_run(const fs::path& directory, TrainStep& step) {
  const Stages& stages = step.stages();
  LocalTraining* const local = step.local();
  const Checkpoint checkpoint(directory);
  const CheckpointManifest& manifest = checkpoint.manifest();
  const std::string saved = saved_optimizer(manifest.config);
  std::string other;
  for (const auto& stage : stages) {
    Optimizer& optimizer = stage->optimizer();
    const bool is_same = saved == to_string(optimizer.kind());
    if (!is_same)
      other = saved;
    stage->params().fill([&](const Param& param) {
      if (is_of_base(param))
        return;
      checkpoint.read(part_of("", param, param.tensor));
      if (!is_same) {
        for (const State& state : param.states)
          zero(state);
        read_master(checkpoint, saved, param);
        return;
      }
      read_states(checkpoint, param);
      if (local == nullptr)
        read_mean_moments(checkpoint, param);
    });
    if (is_same)
      set_optimizer(
          manifest,
          local == nullptr ? 0 : local->group(),
          local == nullptr ? 1 : local->groups(),
          optimizer);
  }
  const bool has_groups =
      local == nullptr || load_local(checkpoint, manifest.step, *local);
  // Those that a group's own files hold are of the other optimizer too.
  if (local != nullptr && !other.empty()) {
    local->visit([](const Param& param) {
      for (const State& state : param.states) {
        if (state.name != kMasterLow && !state.name.starts_with("outer."))
          zero(state);
      }
    });
  }
  step.routers().load(manifest.expert_choices, directory);
  return {
      {manifest.step,
       manifest.tokens,
       samples_of(manifest),
       manifest.skipped_steps},
      manifest.run,
      has_groups,
      local == nullptr || !has_groups
          ? steps_not_merged(saved_rounds(manifest.config), manifest.step)
          : 0,
      other};
}

CheckpointToSave checkpoint_of(
    const TrainConfig& config,
    const ProcessMesh& mesh,
    TrainStep& step,
    const nlohmann::json& data,
    const RunPosition& position,
    const std::string& run) {
  const Stages& stages = step.stages();
  LocalTraining* const local = step.local();
  CheckpointToSave checkpoint;
  CheckpointManifest& manifest = checkpoint.manifest;
  manifest.step = position.steps;
  manifest.tokens = position.tokens;
  manifest.samples = position.samples;
  manifest.skipped_steps = position.skipped_steps;
  manifest.expert_choices = step.routers().saved();
  manifest.run = run;
  manifest.data = data;
  manifest.dtype = to_string(config.model.dtype);
  manifest.model = to_hugging_face_json(model_of(config), manifest.dtype);
  manifest.model_source = config.model.source;
  manifest.config = to_json(config);
  if (config.adapter.is_used())
    manifest.base_model = fs::absolute(config.model.folder).string();
  manifest.writers = mesh.dims().world_size();
  manifest.optimizer =
      describe_optimizers(stages.front()->optimizer(), position, mesh);
  attach_files(config, checkpoint);
  add_wire_parts(mesh.rank(), stages, checkpoint);
  if (local != nullptr)
    add_local_parts(*local, mesh, checkpoint);
  Shares of_replicas(*mesh.dp_cp());
  Shares of_experts(*mesh.expert_replicas());
  // What is gathered for the visit alone.
  const bool is_sharded = config.distributed.zero_stage > 0;
  const auto weights = config.distributed.zero_stage == 3
                           ? WholeWeight::kIsFreed
                           : WholeWeight::kStays;
  for (const auto& stage : stages) {
    stage->params().visit([&](const Param& param) {
      if (!param.is_counted_here() || is_of_base(param))
        return;
      // Each group has its own values of those.
      if (local != nullptr && param.row->trains)
        return;
      Shares& shares =
          param.row->expert == kNoExpert ? of_replicas : of_experts;
      if (State weight = part_of("", param, param.tensor);
          shares.take(weight)) {
        weight.tensor = stored_weight(stage->optimizer(), param);
        if (weights == WholeWeight::kIsFreed)
          weight.tensor = own_copy(weight.tensor);
        checkpoint.weights.push_back(std::move(weight));
      }
      for (State& part : optimizer_parts_of(stage->optimizer(), param)) {
        if (!shares.take(part))
          continue;
        if (is_sharded)
          own_copies(part, weights);
        checkpoint.optimizer.push_back(std::move(part));
      }
    });
  }
  return checkpoint;
}

}  // namespace brigade

#include "brigade/doctor/layout_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/data/megatron_writer.h"
#include "brigade/files/file.h"
#include "brigade/launch/network.h"
#include "brigade/run/run_options.h"
#include "brigade/topology/sequence_partition.h"
#include "brigade/train/train_step.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 3;
constexpr int kAccumulation = 2;
constexpr int64_t kVocabulary = 256;
constexpr int64_t kSequenceTokens = 48;
constexpr int kMostHeads = 4;
constexpr int kMostLayers = 4;
constexpr int kCheckedExperts = 4;

struct CheckedLayout {
  ParallelDims dims;
  int zero_stage = 0;
  bool has_experts = false;

  std::string name() const {
    std::string text;
    for (const Axis axis : kAxes) {
      if (dims[axis] > 1)
        text += fmt::format(
            "{}{}{}", text.empty() ? "" : " ", to_string(axis), dims[axis]);
    }
    if (text.empty())
      text = "one rank";
    if (zero_stage > 0)
      text += fmt::format(" zero{}", zero_stage);
    if (dims.ep > 1)
      return fmt::format("{} ep{}", text, dims.ep);
    return has_experts ? text + ", experts" : text;
  }
};

struct Trained {
  std::vector<double> losses;
  std::vector<double> grad_norms;
};

nlohmann::json run_config(const fs::path& folder) {
  return {
      {"model",
       {{"config",
         {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", kVocabulary},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", kMostLayers},
          {"num_attention_heads", kMostHeads},
          {"num_key_value_heads", kMostHeads},
          {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-5},
          {"tie_word_embeddings", true}}}}},
      {"training",
       {{"seq_length", kSequenceTokens},
        {"gradient_accumulation_steps", kAccumulation},
        {"learning_rate", 1e-2},
        {"grad_clip", 1.0}}},
      {"dataset", {{"name", (folder / "tokens").string()}}}};
}

// As many sequences per step whatever the layout, and divisible by the parts of
// its batch.
int sequences_of_step(int ranks) {
  return ranks * kAccumulation;
}

Trained train(
    const fs::path& folder,
    const CheckedLayout& layout,
    const char* kernels,
    int ranks,
    const ProcessMesh& mesh) {
  LoadOptions options;
  options.path = folder / "run.json";
  options.world_size = layout.dims.world_size();
  for (const Axis axis : kNamedAxes)
    options.overrides.push_back({fmt::format(
        "distributed.{}={}", size_key_of(axis), layout.dims[axis])});
  for (const std::string& text :
       {fmt::format("distributed.zero_stage={}", layout.zero_stage),
        fmt::format(
            "training.micro_batch_size={}",
            sequences_of_step(ranks) /
                (layout.dims.batch_parts() * kAccumulation)),
        fmt::format("model.kernels={}", kernels)})
    options.overrides.push_back({text});
  if (layout.has_experts) {
    for (const std::string& text :
         {std::string(R"(model.config.architectures=["MixtralForCausalLM"])"),
          std::string("model.config.model_type=mixtral"),
          std::string("model.config.num_experts_per_tok=2"),
          fmt::format("model.config.num_local_experts={}", kCheckedExperts),
          fmt::format("distributed.ep_size={}", layout.dims.ep)})
      options.overrides.push_back({text});
  }
  const TrainConfig config = load_train_config(options).config;
  const TrainingData data = open_training_data(training_data_options(config));
  TrainStep step(config, mesh, data);
  // A rank of another pipeline stage does not know the loss.
  const bool has_loss = mesh.coordinate().pp == mesh.dims().pp - 1;
  Trained trained;
  for (int64_t i = 1; i <= kSteps; ++i) {
    const StepResult result = step.run(i);
    trained.losses.push_back(has_loss ? result.loss : 0);
    trained.grad_norms.push_back(result.grad_norm);
  }
  return trained;
}

double largest_difference(
    const std::vector<double>& values,
    const std::vector<double>& expected) {
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double difference = std::abs(values[i] - expected[i]) / expected[i];
    largest =
        std::isfinite(difference) ? std::max(largest, difference) : difference;
  }
  return largest;
}

std::vector<CheckedLayout> checked_layouts(int ranks) {
  std::vector<CheckedLayout> layouts;
  for (const ParallelDims& dims : layouts_of(ranks)) {
    layouts.push_back({.dims = dims});
    const bool is_data_parallel_alone = dims.dp == ranks && ranks > 1;
    for (int stage = 1; is_data_parallel_alone && stage <= 3; ++stage)
      layouts.push_back({.dims = dims, .zero_stage = stage});
  }
  // Experts divided among as many ranks as can be.
  layouts.push_back(
      {.dims = {.dp = ranks, .ep = std::gcd(ranks, kCheckedExperts)},
       .zero_stage = ranks > 1 ? 1 : 0,
       .has_experts = true});
  return layouts;
}

int axes_in_use(const ParallelDims& dims) {
  return static_cast<int>(std::count_if(
      kAxes.begin(), kAxes.end(), [&](Axis axis) { return dims[axis] > 1; }));
}

}  // namespace

std::vector<ParallelDims> layouts_of(int ranks) {
  std::vector<ParallelDims> layouts = all_dims(ranks);
  std::erase_if(layouts, [](const ParallelDims& dims) {
    std::vector<std::string> problems;
    validate_sequence_partition(kSequenceTokens, dims, problems);
    return kMostHeads % dims.tp != 0 || dims.pp > kMostLayers ||
           !problems.empty();
  });
  std::ranges::sort(layouts, {}, [](const ParallelDims& dims) {
    std::vector<int> place = {axes_in_use(dims), -dims.dp};
    for (const Axis axis : kNamedAxes)
      place.push_back(dims[axis]);
    return place;
  });
  return layouts;
}

void write_layout_check_data(const fs::path& folder) {
  std::vector<int32_t> tokens(20000);
  uint32_t state = 1;
  for (int32_t& token : tokens) {
    state = state * 1664525 + 1013904223;
    // Uneven, so that there is something to learn.
    const uint32_t draw = state >> 16;
    token =
        static_cast<int32_t>(draw % 7 == 0 ? draw % kVocabulary : draw % 16);
  }
  const TokenType type = megatron_token_type(kVocabulary);
  std::vector<std::byte> bytes;
  append_tokens(type, tokens, bytes);
  MegatronWriter writer(folder / "tokens", {.type = type});
  writer.append(bytes);
  writer.end_document();
  writer.commit();
  write_text_file(folder / "run.json", run_config(folder).dump(2));
}

void check_layouts(
    const LaunchEnvironment& environment,
    const StorePtr& store,
    const fs::path& folder,
    const std::function<void(const LayoutDifference&)>& on_result,
    Backend over) {
  const int ranks = environment.world_size;
  const ProcessMesh alone({}, 0, nullptr);
  const Trained of_dense = train(folder, {}, "aten", ranks, alone);
  const Trained of_experts =
      train(folder, {.has_experts = true}, "aten", ranks, alone);
  BackendOptions backend{.backend = over};
  if (ranks > 1) {
    const PeerAddress address = peer_address(environment);
    backend.gloo = {.interface = address.interface, .address = address.address};
  }
  for (const CheckedLayout& layout : checked_layouts(ranks)) {
    const std::string name = layout.name();
    const Trained& expected = layout.has_experts ? of_experts : of_dense;
    const ProcessMesh mesh(
        layout.dims,
        environment.rank,
        store ? store->with_prefix("doctor " + name) : nullptr,
        {.timeout = std::chrono::minutes(2),
         .device = device_of(backend.backend, environment)},
        backend);
    LayoutDifference result;
    result.layout = name;
    try {
      const Trained trained = train(folder, layout, "auto", ranks, mesh);
      const bool has_loss = mesh.coordinate().pp == mesh.dims().pp - 1;
      result.loss =
          has_loss ? largest_difference(trained.losses, expected.losses) : 0;
      result.grad_norm =
          largest_difference(trained.grad_norms, expected.grad_norms);
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      result.failure = error.what();
    }
    // The worst of all ranks, in units that integers can hold.
    constexpr double kUnits = 1e12;
    const auto units = [](double value) {
      return std::isfinite(value) && value < 1e6
                 ? static_cast<int64_t>(value * kUnits)
                 : std::numeric_limits<int64_t>::max();
    };
    const auto worst = Agreement(*mesh.world())
                           .max({units(result.loss), units(result.grad_norm)});
    result.loss = static_cast<double>(worst[0]) / kUnits;
    result.grad_norm = static_cast<double>(worst[1]) / kUnits;
    on_result(result);
  }
}

}  // namespace brigade

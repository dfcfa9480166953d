#include "tiny_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "brigade/base/error.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/export_model.h"
#include "brigade/data/loss_mask.h"
#include "tests/support/compare.h"
#include "tests/support/train_as_threads.h"

namespace brigade {

namespace {

namespace fs = std::filesystem;

std::map<std::string, torch::Tensor> tensors_of(
    const Checkpoint& checkpoint,
    const std::string& prefix) {
  std::map<std::string, torch::Tensor> tensors;
  for (const std::string& name : checkpoint.names()) {
    if (name.starts_with(prefix + "model.") ||
        name.starts_with(prefix + "lm_head."))
      tensors[name.substr(prefix.size())] = checkpoint.read_whole(name);
  }
  return tensors;
}

std::map<std::string, torch::Tensor> scales_and_weights(
    const TrainingResult& result) {
  std::map<std::string, torch::Tensor> weights = result.weights;
  if (!result.norms_add_one)
    return weights;
  for (auto& [name, weight] : weights) {
    if (name.ends_with("norm.weight"))
      weight = weight + 1;
  }
  return weights;
}

struct LargestError {
  double value = 0;
  std::string name;
};

LargestError largest_error(
    const std::map<std::string, torch::Tensor>& actual,
    const std::map<std::string, torch::Tensor>& expected) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  LargestError largest;
  if (actual.size() != expected.size())
    return {kInfinity, "the number of parameters"};
  for (const auto& [name, tensor] : expected) {
    const auto found = actual.find(name);
    double error = kInfinity;
    if (found != actual.end() && found->second.sizes() == tensor.sizes())
      error = testing::relative_error(found->second, tensor);
    // Written so that a NaN is the largest of all.
    if (!(error <= largest.value))
      largest = {error, name};
  }
  return largest;
}

// Beside a copy of the tokens: of four pieces of 48 tokens the first has none
// that counts, the second the last 5, the third every seventh, the fourth all.
std::string write_masked_copy(const std::string& dataset) {
  const std::string copy = dataset + "_masked";
  for (const char* suffix : {".bin", ".idx", ".json"})
    fs::copy_file(dataset + suffix, copy + suffix);
  LossMaskWriter mask;
  const uint64_t tokens = fs::file_size(dataset + ".bin") / 2;
  for (uint64_t token = 0; token < tokens; ++token) {
    const uint64_t place = token % 48;
    const bool counts[] = {false, place >= 43, place % 7 == 0, true};
    mask.append(counts[token / 48 % 4]);
  }
  mask.commit(copy + ".mask");
  return copy;
}

}  // namespace

void Errors::include(const Errors& other) {
  loss = std::max(loss, other.loss);
  if (!(other.gradient <= gradient)) {
    gradient = other.gradient;
    gradient_name = other.gradient_name;
  }
  if (!(other.weight <= weight)) {
    weight = other.weight;
    weight_name = other.weight_name;
  }
}

Errors compare(const TrainingResult& actual, const TrainingResult& expected) {
  LargestError gradient = largest_error(actual.gradients, expected.gradients);
  // The first step's norm too, before weights drift apart; PyTorch has none.
  if (!expected.grad_norms.empty()) {
    const double norm =
        actual.grad_norms.empty()
            ? std::numeric_limits<double>::infinity()
            : testing::largest_relative_difference(
                  {actual.grad_norms.front()}, {expected.grad_norms.front()});
    if (!(norm <= gradient.value))
      gradient = {norm, "all parameters (grad_norm)"};
  }
  const LargestError weight =
      largest_error(scales_and_weights(actual), scales_and_weights(expected));
  return {
      .loss = std::max(
          testing::largest_relative_difference(actual.losses, expected.losses),
          testing::largest_relative_difference(
              actual.eval_losses, expected.eval_losses)),
      .gradient = gradient.value,
      .weight = weight.value,
      .gradient_name = gradient.name,
      .weight_name = weight.name};
}

TinyTraining::TinyTraining()
    : dataset_(testing::prepare_bytes(
          folder_ / "tokens",
          testing::made_up_text(24000),
          // Sentences: about one ends in each sequence.
          {"--document-separator", ". "})),
      masked_dataset_(write_masked_copy(dataset_)) {
  auto config = testing::tiny_run(dataset_);
  auto& training = config["training"];
  // Well below the first norms, which are above 1.
  training["grad_clip"] = 0.5;
  training["eval_every"] = kEvalEvery;
  training["eval_steps"] = 1;
  config["dataset"]["eval_fraction"] = kEvalFraction;
  config["checkpoint"]["save_frequency"] = 1;
  testing::write_file(folder_ / "run.json", config.dump());
}

fs::path TinyTraining::base_of(const LayoutCase& layout) {
  const LayoutCase base{.tied = layout.tied, .model = layout.model};
  fs::path folder = folder_ / ("base_" + name_of(base));
  if (fs::exists(folder))
    return folder;
  const fs::path run = folder_ / "base_run";
  std::vector<std::string> overrides = overrides_of(base);
  overrides.push_back("logging.run_dir=" + run.string());
  // A step of no length. Weights so large that attention tells keys apart:
  // gradients of nothing but rounding, which Adam makes steps of the whole rate,
  // would be all that k's B consists of, which begins with zeros.
  overrides.insert(
      overrides.end(),
      {"training.learning_rate=0",
       "training.total_train_steps=1",
       "model.config.initializer_range=0.2"});
  testing::train_as_threads(folder_ / "run.json", 1, overrides);
  export_checkpoint(run, folder);
  fs::remove_all(run);
  return folder;
}

TrainingResult TinyTraining::train(
    const LayoutCase& layout,
    const std::vector<std::string>& more) {
  const fs::path run = folder_ / "run";
  std::vector<std::string> overrides = overrides_of(layout);
  overrides.push_back("logging.run_dir=" + run.string());
  if (layout.adapter > 0)
    overrides.push_back("model.name=" + base_of(layout).string());
  if (layout.masked)
    overrides.push_back("dataset.name=" + masked_dataset_);
  overrides.insert(overrides.end(), more.begin(), more.end());
  TrainingResult result;
  result.norms_add_one = layout.model.starts_with("gemma");
  try {
    testing::train_as_threads(
        folder_ / "run.json", layout.dims.world_size(), overrides);
  } catch (const std::exception& error) {
    result.failure = error.what();
    return result;
  }
  for (const auto& step : testing::read_metrics(run)) {
    result.losses.push_back(step.at("loss").get<double>());
    result.grad_norms.push_back(step.at("grad_norm").get<double>());
    if (step.contains("eval_loss"))
      result.eval_losses.push_back(step["eval_loss"].get<double>());
  }
  try {
    const fs::path checkpoints = run / "checkpoints";
    result.gradients = tensors_of(Checkpoint(checkpoints / "1"), "exp_avg.");
    result.weights =
        tensors_of(Checkpoint(checkpoints / std::to_string(layout.steps)), "");
  } catch (const Error& error) {
    result.failure = error.what();
  }
  fs::remove_all(run);
  return result;
}

const TrainingResult& TinyTraining::oracle(const LayoutCase& layout) {
  const int sequences = sequences_of_step(layout.dims.dp);
  const LayoutCase one_rank{
      .tied = layout.tied,
      .documents = layout.documents,
      .masked = layout.masked,
      .packed = layout.packed,
      .model = layout.model,
      .optimizer = layout.optimizer,
      .steps = layout.steps,
      .dtype = layout.dtype,
      .adapter = layout.adapter,
      .adapter_form = layout.adapter_form};
  const int tokens = tokens_of_sequence(layout.dims.cp);
  const std::string key =
      fmt::format("{} {} {}", name_of(one_rank), sequences, tokens);
  auto found = oracles_.find(key);
  if (found == oracles_.end()) {
    const std::vector<std::string> size = {
        fmt::format("training.micro_batch_size={}", sequences / kAccumulation),
        fmt::format("training.seq_length={}", tokens)};
    found = oracles_.emplace(key, train(one_rank, size)).first;
  }
  return found->second;
}

}  // namespace brigade

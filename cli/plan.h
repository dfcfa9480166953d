// What the parts of brigade plan share: its arguments, what it reads, what it
// prints. Private to cli/plan*.cpp.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "brigade/options/optimizer.h"
#include "brigade/planner/search.h"

namespace brigade::cli {

struct PlanArguments {
  std::string model;
  std::string machine;
  int devices = 0;
  int64_t sequence_tokens = 0;  // 0: the model's positions, at most 8192
  int64_t sequences = 0;        // 0: about 4 Mi tokens
  std::string dtype = "bf16";
  std::vector<int> zero_stages = {0, 1, 2, 3};
  double memory_part = 0.95;
  size_t top = 10;
  std::string explain;
  std::string html;
  std::string config_out;
  bool as_json = false;
  bool calibrates = false;
  std::optional<int> nproc;  // with --calibrate
  std::string machine_out = "machine.json";
};

struct Model {
  planner::ModelShape shape;
  int64_t positions = 0;  // the longest sequence it was made for
  nlohmann::json config;  // Hugging Face's
  // The loss and the optimizer of a training config.
  planner::HeadWork head = {};
  OptimizerOptions optimizer = {};
  // The keys of group `training` that say these.
  nlohmann::json training = nlohmann::json::object();
};

// Throw ConfigError with every problem found.
Model read_model(const std::string& given);
planner::Training make_training(
    const PlanArguments& arguments,
    const Model& model);

// --calibrate: measures this machine with all ranks at once; rank 0 writes its
// file and prints what was measured.
void calibrate(const PlanArguments& arguments);

// --explain: one layout, whether it fits or not.
void explain(const PlanArguments& arguments, planner::StepEstimator& estimator);

// A search that found something, as text, as JSON and as a page.
void print_found(
    const PlanArguments& arguments,
    const planner::SearchResult& found,
    const planner::Training& training);
void print_json(
    const PlanArguments& arguments,
    const planner::SearchResult& found,
    const planner::Training& training);
void write_page(
    const PlanArguments& arguments,
    const planner::SearchResult& found,
    planner::StepEstimator& estimator);
// The quickest layout that `train` takes, written to --config-out.
void print_config(
    const PlanArguments& arguments,
    const planner::SearchResult& found,
    const planner::Training& training,
    const Model& model);

// Throws the ConfigError of a model that fits nowhere.
[[noreturn]] void refuse(
    const PlanArguments& arguments,
    const planner::SearchOptions& options,
    const planner::Training& training,
    const planner::SearchResult& nothing);

}  // namespace brigade::cli

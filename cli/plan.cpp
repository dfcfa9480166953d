// brigade plan: time and memory of a run on paper.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/config/given.h"
#include "brigade/files/output_path.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/plan.h"

namespace brigade::cli {
namespace {

namespace fs = std::filesystem;

void check_inputs(const PlanArguments& arguments) {
  std::vector<std::string> problems;
  const auto require = [&](bool is_given, const char* option) {
    if (!is_given)
      problems.push_back(fmt::format("[plan] {} is required", option));
  };
  require(!arguments.model.empty(), "--model FILE or --run DIR");
  require(
      !arguments.machine.empty(),
      "--machine NAME|FILE (--calibrate writes one)");
  require(arguments.devices > 0, "--gpus N");
  if (!problems.empty())
    throw ConfigError(problems);
}

void plan(PlanArguments arguments) {
  if (arguments.calibrates)
    return calibrate(arguments);
  check_inputs(arguments);
  // They go into JSON.
  for (const std::string& name : {arguments.model, arguments.machine}) {
    if (const auto problem = find_utf8_problem(name, "command line"))
      throw ConfigError(*problem);
  }
  if (!arguments.html.empty())
    check_writable(arguments.html, "<!DOCTYPE html>");
  if (!arguments.config_out.empty()) {
    std::error_code error;
    for (const auto& [option, path] :
         {std::pair{"--model", arguments.model},
          std::pair{"--machine", arguments.machine},
          std::pair{"--html", arguments.html}}) {
      if (fs::weakly_canonical(path, error) ==
          fs::weakly_canonical(arguments.config_out, error))
        throw ConfigError(fmt::format(
            "[plan] --config-out '{}' is the file of {}; give another",
            arguments.config_out,
            option));
    }
    check_writable(arguments.config_out);
  }
  std::vector<int>& stages = arguments.zero_stages;
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  const Model model = read_model(arguments.model);
  planner::StepEstimator estimator(make_training(arguments, model));
  if (!arguments.explain.empty())
    return explain(arguments, estimator);
  const planner::Training& training = estimator.training();
  const planner::SearchOptions options = {
      .devices = arguments.devices,
      .memory_part = arguments.memory_part,
      .zero_stages = arguments.zero_stages};
  const planner::SearchResult found = planner::search(estimator, options);
  if (found.fitting.empty())
    refuse(arguments, options, training, found);
  if (!arguments.html.empty())
    write_page(arguments, found, estimator);
  if (arguments.as_json) {
    print_json(arguments, found, training);
    return;
  }
  print_found(arguments, found, training);
  print_config(arguments, found, training, model);
  if (!arguments.html.empty())
    fmt::print("wrote {}\n", arguments.html);
}

void add_outputs(CLI::App& command, PlanArguments& arguments) {
  CLI::Option* top =
      command.add_option("--top", arguments.top, "Layouts to list");
  top->type_name("N")->check(whole_number(1, 1000))->capture_default_str();
  CLI::Option* explain = command.add_option(
      "--explain",
      arguments.explain,
      "One layout's time and memory, e.g. dp64-tp8-mb2-full");
  explain->type_name("LAYOUT")->excludes(top)->excludes(
      command.get_option("--zero"));
  command
      .add_option(
          "--html",
          arguments.html,
          "Write a page with memory bars and the simulated timeline")
      ->type_name("FILE")
      ->excludes(explain);
  CLI::Option* config_out = command.add_option(
      "--config-out",
      arguments.config_out,
      "Write the quickest layout that `train` takes as its config");
  config_out->type_name("FILE")->excludes(explain);
  command.add_flag("--json", arguments.as_json, "Print JSON")
      ->excludes(config_out);
}

void add_calibration(CLI::App& command, PlanArguments& arguments) {
  CLI::Option* calibrate = command.add_flag(
      "--calibrate",
      arguments.calibrates,
      "Measure this machine and write its file; takes one to five minutes");
  // Nothing is planned then.
  for (CLI::Option* option : command.get_options()) {
    if (option != calibrate && option != command.get_help_ptr())
      calibrate->excludes(option);
  }
  command
      .add_option(
          "--nproc",
          arguments.nproc,
          "Ranks that measure together (default: what torchrun, mpirun or srun "
          "started, else 1)")
      ->type_name("N")
      ->check(whole_number(1, 4096))
      ->needs(calibrate);
  command
      .add_option(
          "--machine-out",
          arguments.machine_out,
          "File that --calibrate writes")
      ->type_name("FILE")
      ->capture_default_str()
      ->needs(calibrate);
}

}  // namespace

void add_plan(CLI::App& app) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command = app.add_subcommand(
      "plan",
      "Predict time and memory of every layout of a model on a machine");
  command
      ->add_option(
          "--model",
          arguments->model,
          "Hugging Face's config.json, or a training config with model.config")
      ->type_name("FILE");
  add_run_option(*command, arguments->model, "", kRunHelp);
  command
      ->add_option(
          "--machine", arguments->machine, "A known machine or a machine file")
      ->type_name("NAME|FILE");
  command->add_option("--gpus", arguments->devices, "Devices")
      ->type_name("N")
      ->check(whole_number(1, 10'000'000));
  command
      ->add_option(
          "--seq",
          arguments->sequence_tokens,
          "Tokens of a sequence (default: the model's positions, at most 8192)")
      ->type_name("T")
      ->check(whole_number(int64_t{1}, int64_t{1} << 30));
  command
      ->add_option(
          "--global-batch",
          arguments->sequences,
          "Sequences of a step (default: about 4 Mi tokens)")
      ->type_name("N")
      ->check(whole_number(int64_t{1}, int64_t{1} << 30));
  command
      ->add_option(
          "--dtype",
          arguments->dtype,
          "Of matrix products: fp32, bf16, fp8, mxfp8, fp4")
      ->type_name("DTYPE")
      ->capture_default_str();
  command
      ->add_option("--zero", arguments->zero_stages, "Zero stages to consider")
      ->type_name("0,1,2,3")
      ->delimiter(',')
      ->check(whole_number(0, 3));
  command
      ->add_option(
          "--memory-part",
          arguments->memory_part,
          "The part of the memory that may be filled")
      ->type_name("X")
      ->check(number_between(0.1, 1))
      ->capture_default_str();
  add_outputs(*command, *arguments);
  add_calibration(*command, *arguments);
  command->footer(
      "Example: brigade plan --model examples/llama-3-8b.json --machine h100 "
      "--gpus 512\n  --seq 8192 --global-batch 1024\n\nPredictions come from a "
      "model of the machine, not from a measurement: docs/planner.md\ntells "
      "how far they are from published runs.");
  command->callback([arguments] { plan(*arguments); });
}

}  // namespace brigade::cli

// What brigade plan prints and writes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "brigade/base/error.h"
#include "brigade/base/units.h"
#include "brigade/files/file.h"
#include "brigade/metrics/metrics.h"
#include "brigade/report/plan_page.h"
#include "brigade/report/plan_table.h"
#include "cli/plan.h"

namespace brigade::cli {
namespace {

using Json = nlohmann::json;

// ---- what train takes

Json config_of(
    const planner::StepEstimate& plan,
    const planner::Training& training,
    const Model& model) {
  const planner::Layout& layout = plan.layout;
  Json config;
  config["distributed"] = {
      {"pp_engine", to_string(layout.schedule)},
      {"pp_virtual_stages", layout.virtual_stages},
      {"zero_stage", layout.zero_stage},
      {"sequence_parallel", layout.tokens == TokenLayout::kSharded}};
  for (const Axis axis : kNamedAxes)
    config["distributed"][size_key_of(axis)] = layout.dims[axis];
  if (layout.dims.ep > 1)
    config["distributed"]["ep_size"] = layout.dims.ep;
  config["model"] = {
      {"config", model.config},
      {"dtype",
       training.precision.products == machine::ProductDtype::kFp32
           ? "float32"
           : "bfloat16"}};
  config["training"] = {
      {"seq_length", training.batch.sequence_tokens},
      {"micro_batch_size", layout.micro_batch},
      {"gradient_accumulation_steps",
       planner::micro_batches(layout, training.batch)},
      {"recompute", to_string(layout.recompute)}};
  config["training"].update(model.training);
  config["dataset"] = {{"name", "data/DATASET"}};
  return config;
}

// The quickest that train takes today, or null.
const planner::StepEstimate* first_for_train(
    const std::vector<planner::StepEstimate>& plans) {
  for (const planner::StepEstimate& plan : plans) {
    if (planner::missing_in_train(plan.layout).empty())
      return &plan;
  }
  return nullptr;
}

// ---- output

Json to_json(const planner::StepEstimate& plan) {
  Json memory = Json::array();
  for (const planner::MemoryParts& rank : plan.memory) {
    Json parts = {{"total", rank.total()}};
    for (const planner::MemoryPart& part : planner::kMemoryParts)
      parts[part.name] = rank.*part.bytes;
    memory.push_back(std::move(parts));
  }
  const planner::PassTime& work = plan.parts.computation;
  Json seconds = {
      {"products", work.products},
      {"attention", work.attention},
      {"elementwise", work.elementwise},
      {"recomputation", work.recompute},
      {"dp", plan.exposed_dp()},
      {"bubble", plan.parts.bubble},
      {"optimizer", plan.parts.optimizer},
      {"slowest_device", plan.parts.slowest}};
  for (const planner::PassPart& part : planner::kPassParts) {
    if (part.is_layer_traffic)
      seconds[part.name] = work.*part.seconds;
  }
  return {
      {"layout", to_string(plan.layout)},
      {"missing_in_train", planner::missing_in_train(plan.layout)},
      {"step_seconds", plan.seconds},
      {"tokens_per_s_per_device", plan.tokens_per_s_per_device},
      {"mfu", plan.mfu},
      {"bubble", plan.bubble},
      {"seconds", seconds},
      {"memory_bytes_by_pp_rank", memory}};
}

void print_heading(
    const planner::Training& training,
    const PlanArguments& arguments) {
  const auto count = [](int64_t parameters) {
    const auto number = static_cast<double>(parameters);
    return number >= 1e8 ? fmt::format("{:.2f} B", number / 1e9)
                         : readable(number);
  };
  const planner::ModelShape& shape = training.shape;
  fmt::print(
      "{}: {} parameters{} on {} x {} ({}), {} tokens per step ({} "
      "sequences of {})\n",
      shape.name,
      count(planner::total_parameters(shape)),
      shape.experts
          ? fmt::format(
                ", {} per token,", count(planner::active_parameters(shape)))
          : "",
      arguments.devices,
      training.machine.device.name,
      training.machine.name,
      training.batch.sequences * training.batch.sequence_tokens,
      training.batch.sequences,
      training.batch.sequence_tokens);
}

void print_one(
    const planner::StepEstimate& plan,
    const planner::Training& training) {
  fmt::print(
      "{}: {} per step, {:.0f} tokens/s per device, {:.1f} % MFU\n{}{}",
      to_string(plan.layout),
      planner::readable_seconds(plan.seconds),
      plan.tokens_per_s_per_device,
      100 * plan.mfu,
      planner::time_table(plan),
      planner::memory_table(plan, training.machine.device));
}

}  // namespace

void explain(
    const PlanArguments& arguments,
    planner::StepEstimator& estimator) {
  const planner::Training& training = estimator.training();
  const planner::Layout layout = planner::parse_layout(arguments.explain);
  std::vector<std::string> problems;
  planner::validate_layout(
      layout, training.shape, training.batch, arguments.devices, problems);
  if (!problems.empty())
    throw ConfigError(problems);
  const planner::StepEstimate plan = estimator.estimate(layout);
  if (arguments.as_json) {
    fmt::print("{}\n", to_json(plan).dump(2));
    return;
  }
  print_heading(training, arguments);
  print_one(plan, training);
  if (!planner::fits(
          plan.memory, training.machine.device, arguments.memory_part))
    fmt::print(
        "does not fit: the largest rank needs {:.1f} GiB, of which {:.0f} % of "
        "{:.1f} may be filled\n",
        planner::largest(plan.memory).total() / static_cast<double>(GiB),
        100 * arguments.memory_part,
        static_cast<double>(training.machine.device.memory_bytes) /
            static_cast<double>(GiB));
  if (const std::string key = planner::missing_in_train(layout); !key.empty())
    fmt::print("`train` does not know {} yet\n", key);
}

void refuse(
    const PlanArguments& arguments,
    const planner::SearchOptions& options,
    const planner::Training& training,
    const planner::SearchResult& nothing) {
  if (nothing.possible == 0)
    throw ConfigError(fmt::format(
        "[plan] no layout of {} devices can train {} with {} sequences of {} "
        "tokens; a global batch that is a multiple of {} gives the most choice",
        arguments.devices,
        training.shape.name,
        training.batch.sequences,
        training.batch.sequence_tokens,
        arguments.devices));
  const planner::LeastThatFits least =
      planner::least_that_fits(training, options, nothing);
  throw ConfigError(fmt::format(
      "[plan] none of {} layouts fits: {} needs least, {:.1f} GiB on its "
      "largest rank, and {} has {:.1f}. It would fit with devices of {:.0f} "
      "GiB, or {}",
      nothing.possible,
      to_string(nothing.least),
      nothing.least_memory.total() / static_cast<double>(GiB),
      training.machine.device.name,
      static_cast<double>(training.machine.device.memory_bytes) /
          static_cast<double>(GiB),
      std::ceil(least.bytes_each / static_cast<double>(GiB)),
      least.devices > 0
          ? fmt::format("with {} of these", least.devices)
          : "with a smaller model or sequence: no number of these is enough"));
}

void write_page(
    const PlanArguments& arguments,
    const planner::SearchResult& found,
    planner::StepEstimator& estimator) {
  const planner::Training& training = estimator.training();
  const planner::Layout& best = found.fitting.front().layout;
  planner::PlanPage page;
  page.title = fmt::format(
      "{} on {} x {}",
      training.shape.name,
      arguments.devices,
      training.machine.device.name);
  page.device = &training.machine.device;
  page.layouts.assign(
      found.fitting.begin(),
      found.fitting.begin() + static_cast<std::ptrdiff_t>(std::min(
                                  arguments.top + 1, found.fitting.size())));
  page.micro_batches = planner::micro_batches(best, training.batch);
  page.drawn_micro_batches =
      std::min<int64_t>(page.micro_batches, 2 * best.dims.pp);
  page.timeline =
      estimator.timeline(best, static_cast<int>(page.drawn_micro_batches));
  write_text_file(arguments.html, planner::plan_page(page));
}

void print_json(
    const PlanArguments& arguments,
    const planner::SearchResult& found,
    const planner::Training& training) {
  Json json = {
      {"model", training.shape.name},
      {"machine", machine::to_json(training.machine)},
      {"devices", arguments.devices},
      {"sequence_tokens", training.batch.sequence_tokens},
      {"sequences", training.batch.sequences},
      {"possible", found.possible},
      {"fitting", found.fitting.size()},
      {"layouts", Json::array()}};
  for (size_t i = 0; i < std::min(arguments.top, found.fitting.size()); ++i)
    json["layouts"].push_back(to_json(found.fitting[i]));
  fmt::print("{}\n", json.dump(2));
}

void print_found(
    const PlanArguments& arguments,
    const planner::SearchResult& found,
    const planner::Training& training) {
  print_heading(training, arguments);
  fmt::print(
      "{} layouts can train it, {} of them fit in {:.0f} % of {:.1f} GiB\n\n{}",
      found.possible,
      found.fitting.size(),
      100 * arguments.memory_part,
      static_cast<double>(training.machine.device.memory_bytes) /
          static_cast<double>(GiB),
      planner::layout_table(found.fitting, arguments.top));
  fmt::print(
      "      Between bubble and memory: exposed communication by axis, share "
      "of "
      "the step. *: needs a key that `train` does not know yet.\n\nThe "
      "quickest: ");
  print_one(found.fitting.front(), training);
  fmt::print("\nWhy the next are slower:\n");
  for (size_t i = 1; i < std::min<size_t>(11, found.fitting.size()); ++i)
    fmt::print(
        "{:>4}  {:+5.1f} %  {}\n",
        i + 1,
        100 * (found.fitting[i].seconds / found.fitting[0].seconds - 1),
        planner::why_slower(found.fitting[0], found.fitting[i]));
}

void print_config(
    const PlanArguments& arguments,
    const planner::SearchResult& found,
    const planner::Training& training,
    const Model& model) {
  const planner::StepEstimate* plan = first_for_train(found.fitting);
  if (plan == nullptr) {
    fmt::print(
        "\nNo config for `train`: every layout that fits needs a key that it "
        "does not know yet\n");
    return;
  }
  const machine::ProductDtype products = training.precision.products;
  const std::string other_dtype =
      products == machine::ProductDtype::kFp32 ||
              products == machine::ProductDtype::kBf16
          ? ""
          : fmt::format(
                "; it trains in bfloat16, which takes longer than {}",
                arguments.dtype);
  const std::string text = config_of(*plan, training, model).dump(2) + "\n";
  if (arguments.config_out.empty()) {
    fmt::print(
        "\nThe quickest that `train` takes today is {}; --config-out FILE "
        "writes its config{}\n",
        to_string(plan->layout),
        other_dtype);
    return;
  }
  write_text_file(arguments.config_out, text);
  fmt::print(
      "\nwrote {}: {} (set dataset.name){}\n",
      arguments.config_out,
      to_string(plan->layout),
      other_dtype);
}

}  // namespace brigade::cli

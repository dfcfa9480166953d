#include "brigade/report/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "brigade/base/readable.h"

namespace brigade::planner {
std::string readable_seconds(double seconds) {
  if (seconds >= 1)
    return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3)
    return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

std::string layout_table(
    const std::vector<StepEstimate>& layouts,
    size_t most) {
  double largest_bytes = 0;
  for (size_t i = 0; i < std::min(most, layouts.size()); ++i)
    largest_bytes = std::max(largest_bytes, largest(layouts[i].memory).total());
  const MemoryUnit unit = memory_unit(largest_bytes);
  const auto row = [](const std::string& begin,
                      const std::vector<std::string>& shares,
                      const std::string& end) {
    std::string text = begin;
    for (const std::string& share : shares)
      text += fmt::format(" {:>6}", share);
    return fmt::format("{} {:>8}\n", text, end);
  };
  std::vector<std::string> names;
  for (const PassPart& part : kPassParts) {
    if (part.is_layer_traffic)
      names.emplace_back(part.name);
  }
  names.emplace_back("dp");
  std::string text =
      row(fmt::format(
              "{:>4}  {:<58} {:>9} {:>10} {:>6} {:>7}",
              "",
              "layout",
              "step",
              "tok/s/dev",
              "MFU",
              "bubble"),
          names,
          unit.name);
  for (size_t i = 0; i < std::min(most, layouts.size()); ++i) {
    const StepEstimate& plan = layouts[i];
    const auto percent = [&](double seconds) {
      return fmt::format("{:.1f}%", 100 * seconds / plan.seconds);
    };
    std::vector<std::string> shares;
    for (const PassPart& part : kPassParts) {
      if (part.is_layer_traffic)
        shares.push_back(percent(plan.parts.computation.*part.seconds));
    }
    shares.push_back(percent(plan.exposed_dp()));
    text +=
        row(fmt::format(
                "{:>4}{} {:<58} {:>9} {:>10.0f} {:>6} {:>7}",
                i + 1,
                missing_in_train(plan.layout).empty() ? " " : "*",
                to_string(plan.layout),
                readable_seconds(plan.seconds),
                plan.tokens_per_s_per_device,
                fmt::format("{:.1f}%", 100 * plan.mfu),
                fmt::format("{:.1f}%", 100 * plan.bubble)),
            shares,
            fmt::format("{:.1f}", largest(plan.memory).total() / unit.bytes));
  }
  return text;
}

std::string time_table(const StepEstimate& estimate) {
  const StepParts& parts = estimate.parts;
  std::vector<std::pair<const char*, double>> rows;
  for (const PassPart& part : kPassParts)
    rows.emplace_back(part.title, parts.computation.*part.seconds);
  rows.insert(
      rows.end(),
      {{"pipeline bubble, with transfers", parts.bubble},
       {"dp of the step, exposed", parts.reduction},
       {"optimizer", parts.optimizer},
       {"waiting for the slowest device", parts.slowest}});
  std::string text;
  for (const auto& [name, seconds] : rows) {
    if (seconds > 0)
      text += fmt::format(
          "  {:<45} {:>9} {:>6.1f} %\n",
          name,
          readable_seconds(seconds),
          100 * seconds / estimate.seconds);
  }
  return text +
         fmt::format(
             "  {:<45} {:>9}\n", "step", readable_seconds(estimate.seconds));
}

std::string memory_table(
    const StepEstimate& estimate,
    const machine::Device& device) {
  const MemoryUnit unit = memory_unit(largest(estimate.memory).total());
  std::string text = "  pp rank";
  for (const MemoryPart& part : kMemoryParts)
    text += fmt::format(" {:>{}}", part.name, part.width);
  text += "   total\n";
  for (size_t rank = 0; rank < estimate.memory.size(); ++rank) {
    const MemoryParts& memory = estimate.memory[rank];
    text += fmt::format("  {:>7}", rank);
    for (const MemoryPart& part : kMemoryParts)
      text += fmt::format(
          " {:>{}.2f}", memory.*part.bytes / unit.bytes, part.width);
    text += fmt::format(" {:>7.2f}\n", memory.total() / unit.bytes);
  }
  return text + fmt::format(
                    "  {}, of {:.1f} on each {}\n",
                    unit.name,
                    static_cast<double>(device.memory_bytes) / unit.bytes,
                    device.name);
}

}  // namespace brigade::planner

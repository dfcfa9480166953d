#include "brigade/report/plan_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "brigade/base/units.h"
#include "brigade/report/html.h"
#include "brigade/report/plan_table.h"

namespace brigade::planner {
namespace {

constexpr double kWidth = 720;  // of a bar or timeline, in the page's units

struct Segment {
  std::string name;
  double value;
};

// A stacked bar; segment i has the class s0, s1, ...
std::string bar(
    const std::vector<Segment>& segments,
    double full,
    const std::string& unit) {
  std::string text = fmt::format(
      "<svg viewBox=\"0 0 {} 18\" role=\"img\"><rect class=\"frame\" "
      "width=\"{}\" "
      "height=\"18\"/>",
      kWidth,
      kWidth);
  double x = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    const double width = kWidth * segments[i].value / full;
    if (width > 0)
      text += fmt::format(
          "<rect class=\"s{}\" x=\"{:.2f}\" width=\"{:.2f}\" height=\"18\">"
          "<title>{}: {:.3g} {}</title></rect>",
          i,
          x,
          width,
          segments[i].name,
          segments[i].value,
          unit);
    x += width;
  }
  return text + "</svg>";
}

std::string legend(const std::vector<Segment>& segments) {
  std::string text = "<p class=\"legend\">";
  for (size_t i = 0; i < segments.size(); ++i)
    text += fmt::format(
        "<svg viewBox=\"0 0 10 10\"><rect class=\"s{}\" width=\"10\" "
        "height=\"10\"/></svg>{} ",
        i,
        segments[i].name);
  return text + "</p>\n";
}

std::vector<Segment> memory_segments(const MemoryParts& memory) {
  std::vector<Segment> segments;
  for (const MemoryPart& part : kMemoryParts)
    segments.push_back(
        {part.name, memory.*part.bytes / static_cast<double>(GiB)});
  return segments;
}

// "tp, cp and ep", and their seconds together.
Segment layer_traffic(const PassTime& work) {
  std::vector<std::string> names;
  double seconds = 0;
  for (const PassPart& part : kPassParts) {
    if (!part.is_layer_traffic)
      continue;
    names.emplace_back(part.name);
    seconds += work.*part.seconds;
  }
  const auto last = names.end() - 1;
  return {
      fmt::format("{} and {}", fmt::join(names.begin(), last, ", "), *last),
      seconds};
}

std::vector<Segment> time_segments(const StepEstimate& plan) {
  const PassTime& work = plan.parts.computation;
  return {
      {"products", work.products},
      {"attention", work.attention},
      {"elementwise", work.elementwise + work.host + work.data},
      {"recomputation", work.recompute},
      layer_traffic(work),
      {"bubble", plan.parts.bubble + work.pp},
      {"dp", work.dp + plan.parts.reduction},
      {"optimizer", plan.parts.optimizer},
      {"slowest device", plan.parts.slowest}};
}

std::string layout_rows(const PlanPage& page) {
  const double slowest = page.layouts.back().seconds;
  const double memory = std::max(
      static_cast<double>(page.device->memory_bytes) / static_cast<double>(GiB),
      1.0);
  std::string text =
      "<table><tr><th>layout</th><th>step</th><th>MFU</th><th>where the time "
      "goes</th><th>memory of the largest rank</th></tr>\n";
  for (const StepEstimate& plan : page.layouts) {
    text += fmt::format(
        "<tr><td><code>{}</code></td><td>{}</td><td>{:.1f} %</td><td>{}</td>"
        "<td>{}{:.1f} of {:.0f} GiB</td></tr>\n",
        to_string(plan.layout),
        readable_seconds(plan.seconds),
        100 * plan.mfu,
        bar(time_segments(plan), slowest, "s"),
        bar(memory_segments(largest(plan.memory)), memory, "GiB"),
        largest(plan.memory).total() / static_cast<double>(GiB),
        memory);
  }
  return text + "</table>\n";
}

std::string timeline(const PlanPage& page) {
  constexpr double kRow = 22;
  const size_t ranks = page.timeline.per_rank.size();
  std::string text = fmt::format(
      "<svg class=\"timeline\" viewBox=\"0 0 {} {}\" role=\"img\">\n",
      kWidth,
      kRow * static_cast<double>(ranks));
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (const TimedAction& timed : page.timeline.per_rank[rank]) {
      const double scale = kWidth / page.timeline.makespan;
      text += fmt::format(
          "<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" "
          "height=\"{:.1f}\"><title>rank {}: {}, {}</title></rect>\n",
          letter_of(timed.action.kind),
          timed.start * scale,
          kRow * static_cast<double>(rank) + 1,
          (timed.end - timed.start) * scale,
          kRow - 2,
          rank,
          describe(timed.action),
          readable_seconds(timed.end - timed.start));
    }
  }
  return text + "</svg>\n";
}

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; vertical-align: top; }
td svg { width: 100%; min-width: 12rem; display: block; }
code { font-size: .85em; }
.legend svg { width: .8em; height: .8em; margin: 0 .3em 0 1em; }
.frame { fill: #8882; }
.timeline { width: 100%; }
.s0 { fill: #4269d0; } .s1 { fill: #efb118; } .s2 { fill: #ff725c; }
.s3 { fill: #6cc5b0; } .s4 { fill: #3ca951; } .s5 { fill: #9c6b4e; }
.s6 { fill: #a463f2; } .s7 { fill: #97bbf5; } .s8 { fill: #9498a0; }
.F { fill: #4269d0; } .B { fill: #3ca951; } .W { fill: #97bbf5; }
.F, .B, .W { stroke: #fff8; stroke-width: .4; }
.scroll { overflow-x: auto; }
)";

}  // namespace

std::string plan_page(const PlanPage& page) {
  const StepEstimate& best = page.layouts.front();
  std::string text = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n"
      "<title>{0}</title><style>{1}</style></head><body>\n<h1>{0}</h1>\n",
      escaped_html(page.title),
      kStyle);
  text += fmt::format(
      "<p>Quickest: <code>{}</code>, {} per step, {:.0f} tokens/s per device, "
      "{:.1f} % MFU. Predicted, not measured.</p>\n<h2>The quickest "
      "layouts</h2>\n",
      to_string(best.layout),
      readable_seconds(best.seconds),
      best.tokens_per_s_per_device,
      100 * best.mfu);
  text += "<p>Time:</p>" + legend(time_segments(best));
  text += "<p>Memory:</p>" + legend(memory_segments(largest(best.memory)));
  text += "<div class=\"scroll\">" + layout_rows(page) + "</div>\n";
  text += fmt::format(
      "<h2>The pipeline of the quickest</h2>\n<p>{} of {} micro-batches, one "
      "row per rank: forward blue, backward green, weight gradients light "
      "blue; gaps are the bubble ({:.1f} % of the whole step's "
      "pipeline).</p>\n<div class=\"scroll\">{}</div>\n",
      page.drawn_micro_batches,
      page.micro_batches,
      100 * best.bubble,
      timeline(page));
  text += "<h2>Memory of each rank of its pipeline</h2>\n<table>\n";
  const double full =
      static_cast<double>(page.device->memory_bytes) / static_cast<double>(GiB);
  for (size_t rank = 0; rank < best.memory.size(); ++rank)
    text += fmt::format(
        "<tr><td>rank {}</td><td>{}</td><td>{:.1f} GiB</td></tr>\n",
        rank,
        bar(memory_segments(best.memory[rank]), full, "GiB"),
        best.memory[rank].total() / static_cast<double>(GiB));
  return text + "</table>\n</body></html>\n";
}

}  // namespace brigade::planner

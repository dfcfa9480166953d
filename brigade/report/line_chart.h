// Small charts of lines as one SVG image, for people.
//
// PURE.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace brigade {

// One line of a chart.
struct ChartLine {
  std::string name;
  // One per label of the chart; absent: the line has a gap there.
  std::vector<std::optional<double>> values;
};

// Lines over labels, which stand at equal distances.
struct LineChart {
  std::string title;
  std::vector<std::string> labels;
  std::vector<ChartLine> lines;
};

// The charts side by side, each with its own scale. Texts may be any.
std::string line_charts_svg(const std::vector<LineChart>& charts);

}  // namespace brigade

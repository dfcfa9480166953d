#include "brigade/report/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "brigade/report/html.h"

namespace brigade {
namespace {

constexpr double kChartWidth = 520;
constexpr double kChartHeight = 320;
constexpr double kLeft = 60;
constexpr double kRight = 130;  // names of lines
constexpr double kTop = 40;
constexpr double kBottom = 40;
constexpr std::array kColours = {
    "#1b6ca8",
    "#c8553d",
    "#3a7d44",
    "#8e5ea2",
    "#b8860b",
    "#2a9d8f",
    "#7f7f7f",
    "#e377c2"};

// From values of one chart to places in the image.
class Scale {
 public:
  explicit Scale(const LineChart& chart) : labels_(chart.labels.size()) {
    for (const ChartLine& line : chart.lines) {
      for (const auto& value : line.values) {
        low_ = std::min(low_, value.value_or(low_));
        high_ = std::max(high_, value.value_or(high_));
      }
    }
    if (low_ > high_)
      low_ = high_ = 0;
    if (low_ == high_)
      high_ = low_ + 1;
  }

  double low() const { return low_; }
  double high() const { return high_; }
  double x(size_t label) const {
    const double last = labels_ > 1 ? static_cast<double>(labels_ - 1) : 1.0;
    return kLeft +
           static_cast<double>(label) / last * (kChartWidth - kLeft - kRight);
  }
  double y(double value) const {
    const double share = (value - low_) / (high_ - low_);
    return kChartHeight - kBottom - share * (kChartHeight - kTop - kBottom);
  }

 private:
  size_t labels_;
  double low_ = std::numeric_limits<double>::infinity();
  double high_ = -std::numeric_limits<double>::infinity();
};

std::string text(
    double x,
    double y,
    const char* anchor,
    const std::string& content,
    const char* colour = "#333") {
  return fmt::format(
      R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill="{}">{}</text>)"
      "\n",
      x,
      y,
      anchor,
      colour,
      escaped_html(content));
}

std::string
line_svg(const ChartLine& line, const Scale& scale, const char* colour) {
  std::string svg;
  std::string path;
  double end = kTop;
  for (size_t i = 0; i < line.values.size(); ++i) {
    if (!line.values[i]) {
      path += ' ';
      continue;
    }
    end = scale.y(*line.values[i]);
    const bool is_begin = path.empty() || path.back() == ' ';
    path +=
        fmt::format("{}{:.1f},{:.1f}", is_begin ? 'M' : 'L', scale.x(i), end);
    svg += fmt::format(
        R"(<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="{}"/>)"
        "\n",
        scale.x(i),
        end,
        colour);
  }
  svg += fmt::format(
      R"(<path d="{}" fill="none" stroke="{}" stroke-width="1.5"/>)"
      "\n",
      path,
      colour);
  return svg +
         text(kChartWidth - kRight + 8, end + 4, "start", line.name, colour);
}

std::string chart_svg(const LineChart& chart) {
  const Scale scale(chart);
  std::string svg = text(kLeft, kTop - 18, "start", chart.title);
  for (const double value : {scale.low(), scale.high()}) {
    svg += fmt::format(
        R"(<line x1="{0:.1f}" x2="{1:.1f}" y1="{2:.1f}" y2="{2:.1f}" )"
        R"(stroke="#ccc"/>)"
        "\n",
        kLeft,
        kChartWidth - kRight,
        scale.y(value));
    svg += text(
        kLeft - 6, scale.y(value) + 4, "end", fmt::format("{:.3g}", value));
  }
  for (size_t i = 0; i < chart.labels.size(); ++i)
    svg += text(
        scale.x(i), kChartHeight - kBottom + 18, "middle", chart.labels[i]);
  for (size_t i = 0; i < chart.lines.size(); ++i)
    svg += line_svg(chart.lines[i], scale, kColours[i % kColours.size()]);
  return svg;
}

}  // namespace

std::string line_charts_svg(const std::vector<LineChart>& charts) {
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" )"
      R"(viewBox="0 0 {0} {1}" font-family="sans-serif" font-size="11">)"
      "\n"
      R"(<rect width="100%" height="100%" fill="#fff"/>)"
      "\n",
      kChartWidth * static_cast<double>(charts.size()),
      kChartHeight);
  for (size_t i = 0; i < charts.size(); ++i)
    svg += fmt::format(
        "<g transform=\"translate({},0)\">\n{}</g>\n",
        kChartWidth * static_cast<double>(i),
        chart_svg(charts[i]));
  return svg + "</svg>\n";
}

}  // namespace brigade

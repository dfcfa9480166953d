// The runs of published_runs.csv, one per configuration.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "brigade/base/error.h"

namespace brigade::bench {

struct PublishedRun {
  std::map<std::string, std::string> fields;  // of the CSV, less the figure
  std::map<std::string, double> figures;      // by metric
  const std::string& text(const std::string& key) const {
    return fields.at(key);
  }
  // 0 where the field is empty.
  int64_t integer(const std::string& key) const {
    const std::string& value = text(key);
    return value.empty() ? 0 : std::stoll(value);
  }
  bool notes_have(const std::string& words) const {
    return text("notes").find(words) != std::string::npos;
  }
  bool source_has(const std::string& words) const {
    return text("source").find(words) != std::string::npos;
  }
  std::optional<double> figure(const std::string& metric) const {
    const auto found = figures.find(metric);
    if (found == figures.end())
      return std::nullopt;
    return found->second;
  }
};

inline std::vector<std::string> split_csv_line(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"') {
      if (quoted && i + 1 < line.size() && line[i + 1] == '"')
        cells.back() += line[++i];
      else
        quoted = !quoted;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  return cells;
}

// Rows that differ in metric and value alone are one run.
inline std::vector<PublishedRun> read_published_runs(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line))
    throw DataError(fmt::format("[{}] cannot be read", path));
  const std::vector<std::string> header = split_csv_line(line);
  std::vector<PublishedRun> runs;
  std::map<std::string, size_t> index;
  while (std::getline(file, line)) {
    const std::vector<std::string> cells = split_csv_line(line);
    if (cells.size() != header.size())
      throw DataError(fmt::format(
          "[{}] a line of {} cells where the header has {}: {}",
          path,
          cells.size(),
          header.size(),
          line));
    PublishedRun run;
    std::string key;
    std::string metric;
    std::string value;
    for (size_t i = 0; i < header.size(); ++i) {
      if (header[i] == "metric") {
        metric = cells[i];
      } else if (header[i] == "value") {
        value = cells[i];
      } else {
        run.fields[header[i]] = cells[i];
        key += cells[i] + '\x1f';
      }
    }
    const auto [found, is_new] = index.emplace(key, runs.size());
    if (is_new)
      runs.push_back(run);
    runs[found->second].figures[metric] = std::stod(value);
  }
  return runs;
}

}  // namespace brigade::bench

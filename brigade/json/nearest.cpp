#include "brigade/json/nearest.h"

#include <algorithm>
#include <cctype>
#include <limits>

namespace brigade {

namespace {

// Only the beginnings of longer names are compared, which keeps the table small
// whatever the file holds.
constexpr size_t kMaxNameBytes = 64;

std::string simplified(std::string_view name) {
  std::string simple;
  for (char c : name.substr(0, kMaxNameBytes)) {
    if (c != '_' && c != '-')
      simple += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return simple;
}

// "lr" of learning_rate.
std::string initials(std::string_view name) {
  std::string letters;
  for (size_t i = 0; i < std::min(name.size(), kMaxNameBytes); ++i) {
    if (i == 0 || name[i - 1] == '_')
      letters += name[i];
  }
  return letters;
}

}  // namespace

// Optimal string alignment: Levenshtein's table with one case more.
int edit_distance(std::string_view a_name, std::string_view b_name) {
  const std::string a = simplified(a_name);
  const std::string b = simplified(b_name);
  std::vector<std::vector<int>> distance(
      a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        distance[i][j] = static_cast<int>(i + j);
        continue;
      }
      const int replaced = distance[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      distance[i][j] =
          std::min({replaced, distance[i - 1][j] + 1, distance[i][j - 1] + 1});
      const bool is_swap =
          i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swap)
        distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
    }
  }
  return distance[a.size()][b.size()];
}

size_t nearest_name(
    std::string_view name,
    const std::vector<std::string>& candidates) {
  const std::string simple = simplified(name);
  size_t nearest = 0;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < candidates.size(); ++i) {
    const std::string candidate = simplified(candidates[i]);
    double distance = edit_distance(name, candidates[i]);
    // batch_size for micro_batch_size: the letters left out weigh little.
    const bool is_contained = simple.size() >= 3 && candidate.size() >= 3 &&
                              (candidate.find(simple) != std::string::npos ||
                               simple.find(candidate) != std::string::npos);
    if (is_contained)
      distance = std::min(distance, 1 + distance / 4);
    if (simple.size() >= 2 && simple == initials(candidates[i]))
      distance = std::min(distance, 1.0);
    if (distance < least) {
      least = distance;
      nearest = i;
    }
  }
  return nearest;
}

}  // namespace brigade

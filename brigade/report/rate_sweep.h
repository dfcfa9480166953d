// What `brigade tune-rate` measured: short trainings of one model in several
// widths at several learning rates, and how far its activations moved. As the
// file that it leaves, as tables and as a picture.
//
// PURE.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace brigade {

// The same tokens through the model before the first step and after some.
struct ActivationChange {
  std::string name;   // "embedding", "layer 0", ..., "logits"
  double before = 0;  // mean |x|
  double change = 0;  // mean |x after - x before|
  bool operator==(const ActivationChange&) const = default;
};

// One training.
struct RateTrial {
  int64_t width = 0;
  double rate = 0;
  // Mean of the last tenth of the steps; absent: it was not finite.
  std::optional<double> loss;
  std::vector<ActivationChange> activations;  // empty: the steps ended before
  bool operator==(const RateTrial&) const = default;
};

struct RateSweep {
  // config_hash() of the config. Trials of another config, number of steps or
  // checked_steps are not taken over.
  std::string config_hash;
  int64_t steps = 0;
  int64_t checked_steps = 0;  // after which activations are compared
  std::vector<int64_t> widths;
  std::vector<double> rates;  // ascending
  double checked_rate = 0;    // of the coordinate check
  std::vector<RateTrial> trials;

  // nullptr: not tried yet.
  const RateTrial* find(int64_t width, double rate) const;
  // With the least loss; absent: none ended with a finite one.
  std::optional<double> best_rate(int64_t width) const;
};

// The file, indented; and its trials again. Throws DataError naming `path` for
// what is no such file, ConfigError where its config, steps or checked_steps
// are others.
std::string sweep_to_text(const RateSweep& sweep);
std::vector<RateTrial> trials_of(
    const std::string& text,
    const std::string& path,
    const RateSweep& sweep);

// Least-squares slope of log2(y) over log2(x): 0 where y does not depend on x.
// Absent where fewer than two pairs are above 0.
std::optional<double> log_slope(
    const std::vector<double>& x,
    const std::vector<double>& y);

// The coordinate check: how far activations moved, by class and width, and the
// slope, at checked_rate.
std::string coordinate_table(const RateSweep& sweep);
// Losses by rate and width; the best of a width has a star.
std::string loss_table(const RateSweep& sweep);
// Both as lines, an SVG image.
std::string sweep_svg(const RateSweep& sweep);

}  // namespace brigade

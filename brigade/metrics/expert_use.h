// How evenly the routers of a model with experts divide a step's tokens, and
// which experts get none.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace brigade {

// One layer with experts in one step, over all ranks: the same in every
// layout.
struct ExpertUse {
  int64_t layer = 0;  // of the whole model, from 0 on
  // Tokens that chose each expert; together tokens of the step * k.
  std::vector<int64_t> rows;
  // Those of these choices that experts had no room for
  // (training.expert_capacity_factor).
  int64_t dropped = 0;
  // The 2-norm of the router's weight, before the step's update.
  double router_norm = 0;

  // The busiest expert's rows over their mean: 1 where even, E where one expert
  // gets all. What the ranks of ep wait for.
  double max_over_mean() const;
  // The entropy of the shares of rows, over that of even ones: 1 where even, 0
  // where one expert gets all.
  double entropy() const;
  // Experts without a row.
  int64_t dead() const;
};

// Whether a line has the rows of each expert, which are most of it.
enum class ExpertRows { kLeaveOut, kSay };

// Whether the `line`th line, counted from 1, of those that may have them has
// them: every one with up to 256 experts in all layers together, and with E
// experts the first one of every E / 256. 48 layers of 128 experts would be 30
// KB per step.
ExpertRows rows_in_line(const std::vector<ExpertUse>& layers, int64_t line);

// {"dropped": 0, "layers": [0, 1], "max_over_mean": [1.2, 1.1], "entropy":
// [0.98, 0.99], "dead": [0, 0], "router_norm": [0.6, 0.6],
// "tokens_per_expert": [[12, 9], [10, 11]]}.
nlohmann::ordered_json to_json(
    const std::vector<ExpertUse>& layers,
    ExpertRows rows);

// The worst layer of a step, for what shows one number.
struct WorstExpertUse {
  double max_over_mean = 0;
  double entropy = 1;
  int64_t dead = 0;
  int64_t dropped = 0;
  double router_norm = 0;
};
// The largest, for entropy the smallest, for dead and dropped the sum over the
// layers.
WorstExpertUse worst_of(const std::vector<ExpertUse>& layers);

// Notices experts that get nothing for long.
class IdleExperts {
 public:
  // Steps without a token after which an expert is named.
  static constexpr int64_t kSteps = 100;

  // Called with every step. Returns a message for each expert that got nothing
  // in the last kSteps steps, once until it gets a token again.
  std::vector<std::string> add(
      int64_t step,
      const std::vector<ExpertUse>& layers);

 private:
  std::map<std::pair<int64_t, size_t>, int64_t> idle_steps_;
};

}  // namespace brigade

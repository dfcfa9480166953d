// One way to lay a model over devices: sizes of the four axes and what else
// changes time and memory but not the result.
//
// PURE.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/model_spec/activation_recompute.h"
#include "brigade/planner/model_shape.h"
#include "brigade/schedule/make_schedule.h"
#include "brigade/topology/parallel_dims.h"
#include "brigade/topology/token_layout.h"

namespace brigade::planner {

using brigade::Recompute;

struct Layout {
  ParallelDims dims;
  // 0: nothing is sharded over dp x cp; 1: optimizer states; 2: and gradients;
  // 3: and weights.
  int zero_stage = 0;
  TokenLayout tokens = TokenLayout::kReplicated;  // kSharded: sequence parallel
  int64_t micro_batch = 1;                        // sequences
  ScheduleKind schedule = ScheduleKind::kOneFOneB;
  int virtual_stages = 1;  // of each rank
  Recompute recompute = Recompute::kNone;
  bool operator==(const Layout&) const = default;

  int stages() const { return dims.pp * virtual_stages; }
};

// "dp8-tp4-pp2-cp1-ep4-zero0-sp-mb1-1f1b-v1-full": what --explain takes; ep is
// left out where it is 1. Parts at their default may be left out when it is
// parsed: "tp8-mb2".
std::string to_string(const Layout& layout);
// Throws ConfigError naming the part that is wrong, with the form.
Layout parse_layout(std::string_view text);

// What a step trains on.
struct Batch {
  int64_t sequence_tokens = 0;  // T
  int64_t sequences = 0;        // of a step, over all replicas
};

// global batch / (dp * micro-batch); requires that it divides.
int64_t micro_batches(const Layout& layout, const Batch& batch);

// Every reason why this layout cannot train that model with that batch, by the
// rules that `train` checks: the product of the sizes, heads and MLP over tp,
// tokens over cp and tp, stages over layers, micro-batches over the schedule.
void validate_layout(
    const Layout& layout,
    const ModelShape& shape,
    const Batch& batch,
    int devices,
    std::vector<std::string>& problems);

// Whether today's `train` has every feature of this layout; "" or the key that
// it does not know yet.
std::string missing_in_train(const Layout& layout);

}  // namespace brigade::planner

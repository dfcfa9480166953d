// All that a prediction depends on but the layout: model, machine, batch,
// number formats, and the program that trains.
//
// PURE.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "brigade/machine/constants.h"
#include "brigade/options/optimizer_states.h"
#include "brigade/options/preference.h"
#include "brigade/planner/program.h"

namespace brigade::planner {

// Bytes per parameter and per activation. Mixed precision keeps 16 of the former: a bf16 weight, an fp32
// gradient, and of the optimizer the fp32 master (of which the bf16 weight is
// the upper half here) and two fp32 moments.
struct Precision {
  machine::ProductDtype products = machine::ProductDtype::kBf16;
  int weight_bytes = 2;
  int gradient_bytes = 4;
  double optimizer_bytes = 10;
  // AdamW's, by which a step's time goes whatever the optimizer is.
  double stepped_bytes = 10;
  int wire_bytes = 4;  // of a gradient while it is reduced
  // optimizer_bytes of the layers' matrices; absent: as of all others.
  std::optional<double> matrix_optimizer_bytes = {};
  double activation_bytes = 2;

  static Precision fp32() {
    Precision precision{machine::ProductDtype::kFp32, 4, 4, 8, 8};
    precision.activation_bytes = 4;
    return precision;
  }
  // Both become that optimizer's.
  void keep_states_of(const OptimizerOptions& options, WeightWidth weight) {
    const auto bytes = [&](StepUnit unit) {
      return element_bytes(optimizer_states(options, unit, weight));
    };
    optimizer_bytes = bytes(StepUnit::kElements);
    matrix_optimizer_bytes = bytes(options.matrix_unit());
  }
};

// What a loss asks of the head beside cross-entropy.
struct HeadWork {
  // Losses of pairs are functions of their tokens' losses: the head is computed
  // for these first, and once more with the gradients.
  int forward_passes = 1;
  // The k tokens that a teacher names of each place, in distillation: their ids
  // (8 bytes) and log-probabilities (4) of all micro-batches of a step are on
  // every rank.
  int64_t teacher_tokens = 0;

  static HeadWork of(const LossOptions& loss, int64_t teacher_tokens) {
    return {
        .forward_passes = loss.is_of_pairs() ? 2 : 1,
        .teacher_tokens = loss.kind == LossKind::kDistill ? teacher_tokens : 0};
  }
  double teacher_bytes(double tokens) const {
    return 12 * static_cast<double>(teacher_tokens) * tokens;
  }
};

struct Training {
  // With the constants that were measured on it, if any were.
  void set_machine(machine::Machine of_run) {
    constants.contention = of_run.contention.value_or(constants.contention);
    constants.device_spread =
        of_run.device_spread.value_or(constants.device_spread);
    machine = std::move(of_run);
  }
  // Where the groups of an axis, and of dp x cp, which reduces gradients, lie.
  machine::GroupPlace place(const ParallelDims& dims, Axis axis) const;
  machine::GroupPlace place_dp_cp(const ParallelDims& dims) const;
  // Where ranks that divide a layer's experts lie, and those that have the
  // same.
  machine::GroupPlace place_expert_parallel(const ParallelDims& dims) const;
  // See place_expert_parallel().
  machine::GroupPlace place_expert_replicas(const ParallelDims& dims) const;

  ModelShape shape;
  machine::Machine machine;
  Batch batch;
  Precision precision;
  HeadWork head;
  machine::Constants constants;
  std::shared_ptr<const Program> program = std::make_shared<Program>();
  std::vector<int> stage_layers;  // empty: cut by cost

 private:
  // Where `count` ranks lie, every `apart`-th one of dp x cp.
  machine::GroupPlace
  place_replicas(const ParallelDims& dims, int apart, int count) const;
};

// Parameters of a rank by who has them too.
struct ParameterSplit {
  double everywhere = 0;  // the ranks of dp x cp
  double of_experts = 0;  // the ranks that have the same experts
};

// The tokens of a micro-batch on a rank of cp.
double local_tokens(const Training& training, const Layout& layout);
// Of the activations [tokens, C] between the regions of tensor parallel.
double hidden_bytes(const Training& training, const Layout& layout);

}  // namespace brigade::planner

// Muon (Jordan et al. 2024) for matrices, AdamW for everything else:
// torch.optim.Muon's arithmetic,
//
//   m = mu m + (1 - mu) g;  u = (1 - mu) g + mu m, without Nesterov m
//   w *= 1 - lr * weight_decay
//   w -= lr * scale * newton_schulz(u)
//
// The momentum lies flat beside the weight, as AdamW's moments do, so that ZeRO
// divides it and checkpoints hold it as they hold those. Newton-Schulz needs
// whole matrices: see WholeMatrices, also for the bytes that are sent. A
// matrix's gradient, which is cleared in the step, holds the update meanwhile.
// Bytes of state and weight per element of a matrix: 8.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/optim/optimizer.h"
#include "brigade/optim/whole_matrices.h"
#include "brigade/options/adamw.h"
#include "brigade/options/muon.h"
#include "brigade/param/param.h"

namespace brigade {

// What the update of a matrix [rows, columns] is multiplied with.
double muon_scale(MuonScale scale, int64_t rows, int64_t columns);

class Muon final : public Optimizer {
 public:
  // Those of the matrices, and those of AdamW for the rest.
  struct Options {
    MuonOptions muon;
    AdamWOptions adamw;  // for all but matrices
  };

  // All ranks that have a part of a parameter, by tensor parallelism or as its
  // replicas; no other matrix there has its name.
  using RanksOf = std::function<CommunicatorPtr(const Param& param)>;

  // Groups with StepUnit::kMatrices have parts, each of a matrix of `params`,
  // which is the same on all ranks of `ranks_of`. Collective over those; so is
  // step(). Throws ConfigError naming a parameter that is no matrix.
  Muon(
      std::vector<OptimizerGroup> groups,
      const std::vector<Param>& params,
      const RanksOf& ranks_of,
      const Options& options);

  bool steps_groups_apart() const override { return false; }

 private:
  void step_ranges(const std::vector<StepRange>& ranges) override;
  void step_range(const StepRange& range) override;
  // What of each part of a group's matrices is to be orthogonalised, flat.
  torch::Tensor update_of(const StepRange& range) const;
  void apply_update(const StepRange& range, const torch::Tensor& update) const;

  Options options_;
  // By group and part: the scale of its matrix.
  std::vector<std::vector<double>> scales_;
  // The matrices of one group of ranks, and by piece the group and part of it.
  struct Set {
    std::unique_ptr<WholeMatrices> matrices;
    std::vector<std::pair<size_t, size_t>> pieces;
  };
  std::vector<Set> sets_;
};

}  // namespace brigade

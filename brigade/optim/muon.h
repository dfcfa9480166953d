// Muon (Jordan et al. 2024) for matrices, AdamW for everything else:
// torch.optim.Muon's arithmetic,
//
//   m = mu m + (1 - mu) g;  u = (1 - mu) g + mu m, without Nesterov m
//   w *= 1 - lr * weight_decay
//   w -= lr * scale * newton_schulz(u)
//
// The momentum is flat, like AdamW's moments, so that ZeRO divides it and
// checkpoints hold it in the same way. Newton-Schulz needs whole matrices: see
// WholeMatrices, also for the bytes that are sent. If the step clears gradients
// (AfterRead::kZero), a matrix's gradient holds the update until the step's
// end. Bytes of state and weight per element of a matrix: 8.
//
// What is sent to a matrix's owner depends on the gradients' scale, which is
// known once all gradients are (clipping, tokens that count). So pieces are
// sent in backward only if the last two steps had the same scale, and are sent
// again if this step's turns out to be another: the result is the same to the
// bit.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/optim/optimizer.h"
#include "brigade/optim/whole_matrices.h"
#include "brigade/options/muon.h"
#include "brigade/param/param.h"

namespace brigade {

// The factor of the update of a matrix [rows, columns].
double muon_scale(MuonScale scale, int64_t rows, int64_t columns);

class Muon final : public Optimizer {
 public:
  // The options for matrices, and AdamW's for all other parameters.
  struct Options {
    MuonOptions muon;
    AdamWOptions adamw;  // for all but matrices
    // See WholeMatricesOptions.
    int64_t round_numel = kRoundNumel;
  };

  // Groups with StepUnit::kMatrices have parts, each of a matrix of `params`,
  // which is the same on all ranks of `ranks_of`; `params` are read in steps,
  // too. Collective over those ranks; so is step(). Throws UsageError naming a
  // parameter that is no matrix.
  Muon(
      std::vector<OptimizerGroup> groups,
      std::span<const Param> params,
      const RanksOf& ranks_of,
      const Options& options);

  void check_steps_groups_apart() const override;
  bool wants_reduced_gradients() override;
  void gradients_are_reduced(size_t run) override;
  void skip_step() override;

 private:
  LateStep step_ranges(const std::vector<StepRange>& ranges, double grad_scale)
      override;
  void step_range(const StepRange& range) override;
  // Adds the gradient to the momentum, and returns the parts of a group's
  // matrices that are to be orthogonalised, flat; if they were sent already,
  // only memory for the result.
  torch::Tensor update_of(const StepRange& range, bool is_sent) const;
  void apply_update(const StepRange& range, const torch::Tensor& update) const;
  // The parameter of a matrix (MatrixPiece::place). The first rounds have the
  // late matrices, because these are sent last.
  int param_of(int place) const {
    return place % static_cast<int>(params_.size());
  }
  int place_of(int param) const {
    return is_late(param) ? param : param + static_cast<int>(params_.size());
  }
  // A gradient that is summed over tensor parallel ranks after backward cannot
  // be sent in it.
  bool is_late(int param) const {
    return params_[static_cast<size_t>(param)].cut.gradient_ranks > 1;
  }
  // The result that update_of() will have if the scale is the expected one.
  torch::Tensor expected_update(size_t group) const;
  // Keeps the updates of a group's pieces, in the wire's dtype, until they are
  // sent.
  void keep_ahead(size_t group, const torch::Tensor& update);
  // By group: whether all its pieces were sent.
  std::vector<bool> groups_sent() const;
  // Drops what was sent ahead.
  void drop_ahead();
  // Steps the groups whose last updates were under way.
  void finish_step();
  // The parameters that finish_step() still steps; none if it waits for nobody.
  std::vector<int> late_params() const;

  // The matrices of one group of ranks, and this rank's pieces of them.
  struct Set {
    std::unique_ptr<WholeMatrices> matrices;
    std::vector<RunPart> pieces;  // their run is the optimizer's group
  };
  std::vector<Set> sets_;
  std::span<const Param> params_;
  torch::ScalarType wire_ = torch::kFloat;
  bool sends_ahead_ = false;  // in this step; the same on all ranks
  double last_scale_ = 0;
  double expected_scale_ = 0;  // of the next step; 0: unknown
  // Until finish_step(): the groups whose last updates are under way.
  std::vector<std::pair<StepRange, torch::Tensor>> unfinished_;
};

}  // namespace brigade

// A fragment of the model on one rank, as the groups of low-communication
// training (DiLoCo) exchange it: the weights that all groups have in common,
// and the outer optimizer that steps them.
//
//   local --send()--> under way --merge() or average()--> local
//
// All of its parameters are held by the same ranks of a group: experts that are
// divided are apart from the rest. The first of these ranks talks to the other
// groups, on a thread of its own, so that training goes on meanwhile; it alone
// has the common weights. The others get the merged weights from it. Everything
// but that exchange runs on the trainer's thread.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/comm/sequential_worker.h"
#include "brigade/comm/sums/rounded_sum.h"
#include "brigade/optim/outer_optimizer.h"
#include "brigade/options/low_communication.h"
#include "brigade/train/stage_runtime.h"

namespace brigade {

// The states of a parameter that belong to the exchange.
inline constexpr const char* kOuterCommon = "outer.common";
inline constexpr const char* kOuterMomentum = "outer.momentum";
inline constexpr const char* kOuterPending = "outer.pending";
inline constexpr const char* kOuterErrors = "outer.errors";

// The parameters of a fragment on this rank, the same ones in every call.
using FragmentParams = std::vector<Param>;

class OuterFragment {
 public:
  // params: not empty; the weights that they have are the common ones.
  // `replicas`: the ranks of this rank's group that hold them. `mesh` and
  // `worker` must outlive it; nothing but fragments, in one order on all ranks,
  // runs on mesh.between_groups().
  OuterFragment(
      const FragmentParams& params,
      const OuterFragmentOptions& options,
      const ProcessMesh& mesh,
      CommunicatorPtr replicas,
      SequentialWorker& worker);
  ~OuterFragment();  // waits for what is under way
  OuterFragment(const OuterFragment&) = delete;
  OuterFragment& operator=(const OuterFragment&) = delete;

  // The sum of squares of (common weights - local weights) over what this rank
  // counts, NaN where the rest is not finite; 0 but on first replicas.
  double squared_change(const FragmentParams& params) const;
  // Launches the mean over the groups of (common weights - local weights), but
  // those that are left out (by group; empty: none is), which send zeros, keep
  // what their wire lost, and take over the common weights whatever alpha is.
  // Bytes sent by the first replica of each of G groups: 2n(G-1)/G, with n in
  // float32 or as rounded_sum.h says.
  void send(
      const FragmentParams& params,
      const std::vector<bool>& left_out = {});
  // Waits for it, steps the common weights with it, and makes the local weights
  // alpha * local + (1 - alpha) * common, in float32 masters. Does nothing when
  // nothing was sent. Collective over the replicas.
  void merge(const FragmentParams& params);
  // The same with the mean of the groups as common weights, which all of them
  // take over whatever alpha is; the outer momentum is zero afterwards.
  void average(const FragmentParams& params);
  bool is_under_way() const { return is_under_way_; }

  // What is kept of one parameter, shaped as it, all float32: kOuterCommon,
  // kOuterMomentum, kOuterPending (the mean that was sent; valid under way)
  // and, with rounding, kOuterErrors. Views that checkpoints read and write;
  // none but on first replicas. Waits for what is under way, which stays so.
  std::vector<State> states(const Param& param);
  // After a checkpoint was loaded: the parameters' values are the common ones,
  // and momentum, errors and pending are zero.
  void restart(const FragmentParams& params);
  // After `pending` was read: the exchange counts as sent.
  void resume_under_way() { is_under_way_ = true; }

 private:
  torch::Tensor slot(const torch::Tensor& flat, const Param& param) const;
  // What the worker does.
  void exchange();
  // The sum of pending_ over the groups, with errors.
  void exchange_rounded(torch::Tensor errors);
  void await_exchange();
  void merge(
      const FragmentParams& params,
      const OuterOptimizerOptions& optimizer,
      double alpha);
  // The ends of a pipeline hold a tied embedding each, whose sums may differ in
  // the last bit.
  void align_tied(const FragmentParams& params);

  OuterFragmentOptions options_;
  const ProcessMesh& mesh_;
  CommunicatorPtr replicas_;
  SequentialWorker& worker_;
  bool is_first_replica_;
  std::map<std::string, FlatRange> ranges_;  // by parameter
  int64_t numel_ = 0;                        // of all
  std::optional<RoundedSum> rounded_;
  // On first replicas, flat over the parameters:
  torch::Tensor common_;
  torch::Tensor momentum_;
  torch::Tensor errors_;
  torch::Tensor pending_;
  bool is_under_way_ = false;
  // The exchange that is under way, or was the last one:
  bool is_left_out_ = false;
  int groups_in_mean_ = 1;
  std::future<void> exchange_;  // valid until it was waited for
};

}  // namespace brigade

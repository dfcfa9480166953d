// The process grid with a communicator for every axis, size 1 included.
//
// Collective: every rank constructs its mesh at the same time with the same
// dims and store. Groups with the same members share one communicator.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "brigade/comm/backend.h"
#include "brigade/comm/communicator.h"
#include "brigade/comm/store.h"
#include "brigade/topology/parallel_dims.h"

namespace brigade {

class ProcessMesh {
 public:
  // `options.name` and `members` are ignored: each group is named after its
  // axis. `member_names` are of all ranks here; empty: "rank 3 (dp 1, tp 1)".
  ProcessMesh(
      const ParallelDims& dims,
      int rank,
      const StorePtr& store,
      CommunicatorOptions options = {},
      BackendOptions backend = {});

  const ParallelDims& dims() const { return dims_; }
  int rank() const { return rank_; }
  const Coordinate& coordinate() const { return coordinate_; }

  // Where this rank has the model's tensors.
  const torch::Device& device() const { return options_.device; }

  const CommunicatorPtr& world() const { return world_; }
  const CommunicatorPtr& axis(Axis axis) const;  // this rank's group
  // Where the ranks met; null for a world of one, or as it was given.
  const StorePtr& store() const { return store_; }
  // Sums gradients: the replicas of this rank's weights.
  const CommunicatorPtr& dp_cp() const { return dp_cp_; }
  // The shards of one replica of the model: the ranks of pp x tp.
  const CommunicatorPtr& model() const { return model_; }
  // The first and the last stage with this rank's other coordinates, which
  // share a tied embedding; a group of one on the stages between them and when
  // pp is 1.
  const CommunicatorPtr& embedding() const { return embedding_; }

  // Every communicator once, for reports and tests.
  std::vector<CommunicatorPtr> all() const;

 private:
  CommunicatorPtr join(const std::string& name, std::vector<int> members);

  ParallelDims dims_;
  int rank_;
  Coordinate coordinate_;
  StorePtr store_;
  CommunicatorOptions options_;
  BackendOptions backend_;
  std::map<std::vector<int>, CommunicatorPtr> by_members_;
  CommunicatorPtr world_;
  CommunicatorPtr dp_cp_;
  CommunicatorPtr model_;
  CommunicatorPtr embedding_;
  std::map<Axis, CommunicatorPtr> axes_;
};

}  // namespace brigade

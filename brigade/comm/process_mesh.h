// The process grid with a communicator for every axis, size 1 included.
//
// Collective: every rank constructs its mesh at the same time with the same
// dims and store. Groups with the same members share one communicator. Ranks
// connect only if they exchange messages: a large grid's world() and model() go
// along the axes (comm/sums/grid_group.h).
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "brigade/comm/backend.h"
#include "brigade/comm/communicator.h"
#include "brigade/comm/sequential_worker.h"
#include "brigade/comm/store.h"
#include "brigade/topology/parallel_dims.h"

namespace brigade {

class ProcessMesh {
 public:
  // `options.name` and `members` are ignored: each group is named after its
  // axis. `member_names` are those of all ranks; empty: "rank 3 (dp 1, tp 1)".
  ProcessMesh(
      const ParallelDims& dims,
      int rank,
      const StorePtr& store,
      CommunicatorOptions options = {},
      BackendOptions backend = {});

  const ParallelDims& dims() const { return dims_; }
  int rank() const { return rank_; }
  const Coordinate& coordinate() const { return coordinate_; }

  // The device of this rank's model tensors.
  const torch::Device& device() const { return options_.device; }

  const CommunicatorPtr& world() const { return world_; }
  const CommunicatorPtr& axis(Axis axis) const;  // this rank's group
  // The ranks that share this rank's sequences.
  const CommunicatorPtr& sequence() const { return sequence_; }
  // The store of the rendezvous, as passed to the constructor; may be null in a
  // world of one.
  const StorePtr& store() const { return store_; }
  // The group that sums gradients: the replicas of this rank's weights. If they
  // are on several hosts, it may sum by host
  // (comm/sums/hierarchical_communicator.h).
  const CommunicatorPtr& dp_cp() const { return dp_cp_; }

  // Cuts the replicas into groups of neighbouring dp coordinates that train
  // apart from one another (distributed.local_steps; DiLoCo). Collective;
  // called at most once. `groups` must divide dp, and dims().ep the replicas of
  // a group.
  void divide_replicas(int groups);
  int replica_groups() const { return replica_groups_; }
  int replica_group() const;  // this rank's, from 0
  // The part of dp_cp() that is in this rank's group; dp_cp() until divided.
  const CommunicatorPtr& replicas() const { return replicas_; }
  // Connects the first ranks of all replica groups that hold the same weights
  // as this one, in the order of the groups; a group of one on ranks that are
  // not first. If experts are divided, the first dims().ep replicas of a group
  // are first for the experts that they hold, and the very first one for all
  // else. Not shared with other axes, because long transfers run on it.
  const CommunicatorPtr& between_groups() const { return between_groups_; }
  // The shards of one replica of the model: the ranks of pp x tp.
  const CommunicatorPtr& model() const { return model_; }
  // The first and the last stage with this rank's other coordinates, which
  // share a tied embedding; a group of one on the stages between them and when
  // pp is 1.
  const CommunicatorPtr& embedding() const { return embedding_; }

  // The ranks among which one set of experts is divided (dims().ep of dp x cp):
  // expert parallelism.
  const CommunicatorPtr& expert_parallel() const { return expert_parallel_; }
  // The group that sums the gradients of experts: the ranks of replicas() that
  // hold the same ones; replicas() if experts are not divided.
  const CommunicatorPtr& expert_replicas() const { return expert_replicas_; }
  // The same over all replica groups.
  const CommunicatorPtr& all_expert_replicas() const {
    return all_expert_replicas_;
  }

  // The group of the ranks that have this rank's colour, in rank order.
  // Collective over all ranks, which call it in the same order; groups with the
  // same members share one communicator.
  CommunicatorPtr split(const std::string& name, const Colour& colour) const;
  // The same with a communicator of its own, whose launches are not ordered
  // with those of other groups of the same members.
  CommunicatorPtr split_apart(const std::string& name, const Colour& colour)
      const;

  // Every communicator once, for reports and tests.
  std::vector<CommunicatorPtr> all() const;

 private:
  CommunicatorPtr join(const std::string& name, std::vector<int> members) const;
  CommunicatorOptions options_of(
      const std::string& name,
      const std::vector<int>& members) const;
  // A group of this mesh's ranks, this rank among them.
  CommunicatorPtr make_group(
      const std::string& name,
      const std::vector<int>& members) const;
  // The ranks that differ along these axes, as one group or as a grid's group.
  CommunicatorPtr join_grid(
      const std::string& name,
      const std::vector<Axis>& axes);
  // Makes the group of replicas, summing by host if `choice` says so and the
  // hosts allow it. Throws ConfigError if it must be by host but cannot.
  CommunicatorPtr join_by_host(
      const std::string& name,
      const std::vector<int>& members,
      HierarchyChoice choice);

  ParallelDims dims_;
  int rank_;
  Coordinate coordinate_;
  StorePtr store_;
  CommunicatorOptions options_;
  BackendOptions backend_;
  // The groups so far, so that the same members are connected once.
  mutable std::map<std::vector<int>, CommunicatorPtr> by_members_;
  // The members of groups that go only along axes. split() connects such
  // members fully, because rows with uneven splits are not exchanged along
  // axes.
  std::set<std::vector<int>> grids_;
  mutable std::map<std::vector<int>, CommunicatorPtr> connected_;
  mutable std::vector<CommunicatorPtr> apart_;  // of split_apart()
  std::vector<CommunicatorPtr> by_host_;        // what replicas go over besides
  // The groups of the axes that world_ and model_ go along, and the thread that
  // does it.
  std::map<Axis, CommunicatorPtr> grid_axes_;
  std::shared_ptr<SequentialWorker> grid_worker_;
  CommunicatorPtr world_;
  CommunicatorPtr dp_cp_;
  int replica_groups_ = 1;
  CommunicatorPtr replicas_;
  CommunicatorPtr between_groups_;
  CommunicatorPtr sequence_;
  CommunicatorPtr model_;
  CommunicatorPtr embedding_;
  CommunicatorPtr expert_parallel_;
  CommunicatorPtr expert_replicas_;
  std::map<Axis, CommunicatorPtr> axes_;
  CommunicatorPtr all_expert_replicas_;
};

}  // namespace brigade

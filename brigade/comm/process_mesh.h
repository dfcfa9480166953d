// The process grid with a communicator for every axis, size 1 included.
//
// Collective: every rank constructs its mesh at the same time with the same
// dims and store. Groups with the same members share one communicator. Ranks
// connect only if they exchange messages: a large grid's world() and model() go
// along the axes (comm/sums/grid_group.h).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "brigade/comm/backend.h"
#include "brigade/comm/communicator.h"
#include "brigade/comm/sequential_worker.h"
#include "brigade/comm/store.h"
#include "brigade/topology/parallel_dims.h"

namespace brigade {

// How the ranks of a group are connected.
enum class Connection {
  // Each with each. Groups with the same members share one communicator.
  kFull,
  // Along the axes alone (comm/sums/grid_group.h) if the group is all ranks of
  // several axes, and more than 16; otherwise as kFull.
  kAlongAxes,
  // As a group with the same members is, else as kFull. Sums go by host, over
  // groups of their own, where the backend, its `hierarchy` and the hosts allow
  // it. Throws ConfigError if `hierarchy` is kOn and the others do not, until
  // replicas are divided.
  kByHost,
  // Each with each by a communicator of its own, whose launches are not ordered
  // with those of other groups of the same members. Its name gets a number.
  kApart,
};

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

  const CommunicatorPtr& world() const { return named_.at("world"); }
  // This rank's group along the axis.
  const CommunicatorPtr& axis(Axis axis) const {
    return named_.at(to_string(axis));
  }
  // The ranks that share this rank's sequences.
  const CommunicatorPtr& sequence() const { return named_.at("sequence"); }
  // The store of the rendezvous, as passed to the constructor; may be null in a
  // world of one.
  const StorePtr& store() const { return store_; }
  // The group that sums gradients: the replicas of this rank's weights. If they
  // are on several hosts, it may sum by host
  // (comm/sums/hierarchical_communicator.h).
  const CommunicatorPtr& dp_cp() const { return named_.at("dp_cp"); }

  // Cuts the replicas into groups of neighbouring dp coordinates that train
  // apart from one another (distributed.local_steps; DiLoCo). Collective;
  // called at most once. `groups` must divide dp, and dims().ep the replicas of
  // a group.
  void divide_replicas(int groups);
  int replica_groups() const { return replica_groups_; }
  int replica_group() const;  // this rank's, from 0
  // The part of dp_cp() that is in this rank's group; dp_cp() until divided.
  const CommunicatorPtr& replicas() const { return named_.at("replicas"); }
  // Connects the first ranks of all replica groups that hold the same weights
  // as this one, in the order of the groups; a group of one on ranks that are
  // not first. If experts are divided, the first dims().ep replicas of a group
  // are first for the experts that they hold, and the very first one for all
  // else. Not shared with other axes, because long transfers run on it.
  const CommunicatorPtr& between_groups() const {
    return named_.at("between_groups");
  }
  // The shards of one replica of the model: the ranks of pp x tp.
  const CommunicatorPtr& model() const { return named_.at("model"); }
  // The first and the last stage with this rank's other coordinates, which
  // share a tied embedding; a group of one on the stages between them and when
  // pp is 1.
  const CommunicatorPtr& embedding() const { return named_.at("embedding"); }

  // The ranks among which one set of experts is divided (dims().ep of dp x cp):
  // expert parallelism.
  const CommunicatorPtr& expert_parallel() const { return named_.at("ep"); }
  // The group that sums the gradients of experts: the ranks of replicas() that
  // hold the same ones; replicas() if experts are not divided.
  const CommunicatorPtr& expert_replicas() const {
    return named_.at("expert_replicas");
  }
  // The same over all replica groups.
  const CommunicatorPtr& all_expert_replicas() const {
    return named_.at("all_expert_replicas");
  }

  // The group of the ranks that have this rank's colour, in rank order.
  // Collective over all ranks, which call it in the same order.
  CommunicatorPtr split(
      const std::string& name,
      Connection connection,
      const Colour& colour) const;

  // Every communicator once, for reports and tests.
  std::vector<CommunicatorPtr> all() const;

 private:
  // This mesh's options with that name and these members.
  CommunicatorOptions options_of(
      const std::string& name,
      std::vector<int> members) const;
  // Connects a group that contains this rank, each with each.
  CommunicatorPtr make_group(const CommunicatorOptions& group) const;
  // split() by Connection; join() is kFull.
  CommunicatorPtr join(const CommunicatorOptions& group) const;
  CommunicatorPtr join_along_axes(const CommunicatorOptions& group) const;
  CommunicatorPtr join_by_host(const CommunicatorOptions& group) const;

  ParallelDims dims_;
  int rank_;
  Coordinate coordinate_;
  StorePtr store_;
  CommunicatorOptions options_;
  BackendOptions backend_;
  int replica_groups_ = 1;
  // The groups so far by members, so that the same ones are connected once:
  // fully, and along axes alone. A grid of kAlongAxes may be connected fully as
  // well, because rows with uneven splits are not exchanged along axes.
  mutable std::map<std::vector<int>, CommunicatorPtr> full_;
  mutable std::map<std::vector<int>, CommunicatorPtr> grids_;
  // The groups of the axes that grids go along, and the thread that does it.
  mutable std::map<Axis, CommunicatorPtr> grid_axes_;
  mutable std::shared_ptr<SequentialWorker> grid_worker_;
  mutable std::vector<CommunicatorPtr> apart_;    // of Connection::kApart
  mutable std::vector<CommunicatorPtr> by_host_;  // inside and across hosts
  std::map<std::string, CommunicatorPtr> named_;  // what the accessors return
};

}  // namespace brigade

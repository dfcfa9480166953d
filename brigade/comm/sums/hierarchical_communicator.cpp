#include "brigade/comm/sums/hierarchical_communicator.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/comm/sequential_worker.h"

namespace brigade {
namespace {

class HierarchicalCommunicator : public Communicator {
 public:
  HierarchicalCommunicator(HierarchicalGroups groups, const HostGrid& grid)
      : Communicator(
            groups.whole->rank(),
            groups.whole->size(),
            // The groups that an operation goes over check and record it.
            unobserved(groups.whole->options())),
        groups_(std::move(groups)) {
    // order[l * H + h] is the rank in the whole group of the l-th rank of host
    // h.
    const auto hosts = static_cast<int64_t>(grid.ranks.size());
    const auto places = static_cast<int64_t>(grid.ranks.front().size());
    std::vector<int64_t> order;
    for (int64_t place = 0; place < places; ++place) {
      for (int64_t host = 0; host < hosts; ++host)
        order.push_back(
            grid.ranks[static_cast<size_t>(host)][static_cast<size_t>(place)]);
    }
    order_ = torch::tensor(order);
    BRIGADE_ASSERT(
        groups_.inside->size() == places && groups_.across->size() == hosts,
        "groups of {} and {} for {} hosts of {}",
        groups_.inside->size(),
        groups_.across->size(),
        hosts,
        places);
  }

  // Tasks under way use the groups.
  ~HierarchicalCommunicator() override { worker_.reset(); }

 private:
  using Record = const CollectiveRecord&;

  WorkPtr queued(Record record, std::function<void()> steps) {
    return launch_task(worker_, record, [steps = std::move(steps)] {
      steps();
      return std::nullopt;
    });
  }

  // Replaces flat by its sum over the whole group. `reduce` sums this rank's
  // shard between the hosts.
  void sum_by_host(
      const torch::Tensor& flat,
      const std::function<void(const torch::Tensor& shard)>& reduce) const {
    const int64_t places = groups_.inside->size();
    const int64_t shard_numel = (flat.numel() + places - 1) / places;
    auto padded = flat;
    if (shard_numel * places != flat.numel()) {
      padded = torch::zeros({shard_numel * places}, flat.options());
      padded.narrow(0, 0, flat.numel()).copy_(flat);
    }
    const auto shard = torch::empty({shard_numel}, flat.options());
    groups_.inside->reduce_scatter(shard, padded)->wait_on_host();
    reduce(shard);
    groups_.inside->all_gather(padded, shard)->wait_on_host();
    if (padded.data_ptr() != flat.data_ptr())
      torch::Tensor(flat).copy_(padded.narrow(0, 0, flat.numel()));
  }

  WorkPtr do_all_reduce(torch::Tensor tensor, ReduceOp op, Record record)
      override {
    if (op != ReduceOp::kSum)
      return groups_.whole->all_reduce(tensor, op);
    return queued(record, [this, flat = tensor.view({-1})] {
      sum_by_host(flat, [this](const torch::Tensor& shard) {
        groups_.across->all_reduce(shard)->wait_on_host();
      });
    });
  }

  WorkPtr do_all_reduce_as_bf16(torch::Tensor tensor, Record record) override {
    return queued(record, [this, flat = tensor.view({-1})] {
      sum_by_host(flat, [this](const torch::Tensor& shard) {
        groups_.across->all_reduce_as_bf16(shard)->wait_on_host();
      });
    });
  }

  WorkPtr do_all_reduce_rows(torch::Tensor matrix, Record record) override {
    const int64_t places = groups_.inside->size();
    if (matrix.size(0) % places != 0)
      return do_all_reduce(std::move(matrix), ReduceOp::kSum, record);
    return queued(record, [this, matrix, places] {
      groups_.inside->all_reduce_rows(matrix)->wait_on_host();
      const int64_t rows = matrix.size(0) / places;
      const auto own = matrix.narrow(0, groups_.inside->rank() * rows, rows);
      groups_.across->all_reduce_rows(own)->wait_on_host();
      groups_.inside->all_gather(matrix, own)->wait_on_host();
    });
  }

  WorkPtr do_reduce_scatter(
      torch::Tensor output,
      torch::Tensor input,
      Record record) override {
    return queued(record, [this, output, input] {
      // The chunks of each place in a host lie behind one another: [L, H, n].
      const auto chunks = input.view({size(), output.numel()});
      const auto by_place = chunks.index_select(0, order_);
      const auto own =
          torch::empty({across_size(), output.numel()}, output.options());
      groups_.inside->reduce_scatter(own, by_place)->wait_on_host();
      groups_.across->reduce_scatter(output, own)->wait_on_host();
    });
  }

  WorkPtr do_all_gather(
      torch::Tensor output,
      torch::Tensor input,
      Record record) override {
    return queued(record, [this, output, input] {
      const auto own =
          torch::empty({across_size(), input.numel()}, input.options());
      groups_.across->all_gather(own, input)->wait_on_host();
      const auto by_place =
          torch::empty({size(), input.numel()}, input.options());
      groups_.inside->all_gather(by_place, own)->wait_on_host();
      output.view({size(), input.numel()}).index_copy_(0, order_, by_place);
    });
  }

  int64_t across_size() const { return groups_.across->size(); }

  WorkPtr do_broadcast(torch::Tensor tensor, int root, Record) override {
    return groups_.whole->broadcast(tensor, root);
  }
  WorkPtr do_all_to_all(
      torch::Tensor output,
      torch::Tensor input,
      const RowSplits& splits,
      Record) override {
    return groups_.whole->all_to_all_single(output, input, splits);
  }
  WorkPtr do_send(torch::Tensor tensor, int destination, int tag, Record)
      override {
    return groups_.whole->send(tensor, destination, tag);
  }
  WorkPtr do_recv(torch::Tensor tensor, int source, int tag, Record) override {
    return groups_.whole->recv(tensor, source, tag);
  }
  WorkPtr do_barrier(Record) override {
    groups_.whole->barrier();
    return make_completed_work();
  }

  HierarchicalGroups groups_;
  torch::Tensor order_;  // [R]
  std::shared_ptr<SequentialWorker> worker_ =
      std::make_shared<SequentialWorker>();
};

}  // namespace

std::optional<HostGrid> find_host_grid(const std::vector<std::string>& hosts) {
  HostGrid grid;
  std::vector<std::string> names;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto known = std::find(names.begin(), names.end(), hosts[rank]);
    const auto host = static_cast<size_t>(known - names.begin());
    if (known == names.end()) {
      names.push_back(hosts[rank]);
      grid.ranks.emplace_back();
    }
    grid.ranks[host].push_back(static_cast<int>(rank));
  }
  if (grid.ranks.size() < 2 || grid.ranks.front().size() < 2)
    return std::nullopt;
  for (const auto& ranks : grid.ranks) {
    if (ranks.size() != grid.ranks.front().size())
      return std::nullopt;
  }
  return grid;
}

CommunicatorPtr make_hierarchical_communicator(
    HierarchicalGroups groups,
    const HostGrid& grid) {
  return std::make_shared<HierarchicalCommunicator>(std::move(groups), grid);
}

}  // namespace brigade

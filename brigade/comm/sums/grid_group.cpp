#include "brigade/comm/sums/grid_group.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "brigade/base/error.h"

namespace brigade {
namespace {

int rank_in(const std::vector<CommunicatorPtr>& axes) {
  int rank = 0;
  for (const CommunicatorPtr& axis : axes)
    rank = rank * axis->size() + axis->rank();
  return rank;
}

int size_of(const std::vector<CommunicatorPtr>& axes) {
  int size = 1;
  for (const CommunicatorPtr& axis : axes)
    size *= axis->size();
  return size;
}

class GridGroup : public Communicator {
 public:
  GridGroup(
      std::vector<CommunicatorPtr> axes,
      std::shared_ptr<SequentialWorker> worker,
      CommunicatorOptions options)
      : Communicator(
            rank_in(axes),
            size_of(axes),
            // The groups of the axes check and record their operations.
            unobserved(std::move(options))),
        axes_(std::move(axes)),
        worker_(std::move(worker)) {}

 private:
  using Record = const CollectiveRecord&;
  using Axes = std::vector<CommunicatorPtr>;

  // `steps` owns what it uses, because the group may be destroyed before they
  // end.
  WorkPtr queued(Record record, std::function<void()> steps) {
    return launch_task(
        worker_,
        record,
        [steps = std::move(steps)] {
          steps();
          return std::nullopt;
        },
        {.waiting_helps = true});
  }

  WorkPtr do_all_reduce(torch::Tensor tensor, ReduceOp op, Record record)
      override {
    return queued(record, [axes = axes_, tensor, op] {
      for (const CommunicatorPtr& axis : axes)
        axis->all_reduce(tensor, op)->wait_on_host();
    });
  }

  static void gather(
      const Axes& axes,
      const torch::Tensor& output,
      const torch::Tensor& input) {
    // The fastest axis first: its ranks are neighbours in the output.
    auto gathered = input.view({-1});
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      auto more = torch::empty(
          {(*axis)->size() * gathered.numel()}, gathered.options());
      (*axis)->all_gather(more, gathered)->wait_on_host();
      gathered = more;
    }
    output.view({-1}).copy_(gathered);
  }

  WorkPtr do_all_gather(
      torch::Tensor output,
      torch::Tensor input,
      Record record) override {
    return queued(
        record, [axes = axes_, output, input] { gather(axes, output, input); });
  }

  WorkPtr do_reduce_scatter(
      torch::Tensor output,
      torch::Tensor input,
      Record record) override {
    return queued(record, [axes = axes_, output, input, rank = rank()] {
      auto sum = input.clone();
      for (const CommunicatorPtr& axis : axes)
        axis->all_reduce(sum)->wait_on_host();
      output.view({-1}).copy_(sum.view({-1, output.numel()})[rank]);
    });
  }

  WorkPtr do_all_to_all(
      torch::Tensor output,
      torch::Tensor input,
      const RowSplits& splits,
      Record record) override {
    if (!splits.is_even())
      refuse("does not exchange rows of unlike splits");
    return queued(
        record, [axes = axes_, output, input, rank = rank(), ranks = size()] {
          auto all = torch::empty({ranks * input.numel()}, input.options());
          gather(axes, all, input);
          // Every rank's chunk for this one.
          output.view({ranks, -1})
              .copy_(all.view({ranks, ranks, input.numel() / ranks})
                         .select(1, rank));
        });
  }

  WorkPtr do_broadcast(torch::Tensor tensor, int root, Record record) override {
    return queued(record, [axes = axes_, tensor, root] {
      // Broadcasts along the slowest axis from the root itself, then from all
      // ranks that have the value; the others broadcast their own, which is
      // overwritten.
      std::vector<int> roots(axes.size());
      int rest = root;
      for (size_t i = axes.size(); i-- > 0;) {
        roots[i] = rest % axes[i]->size();
        rest /= axes[i]->size();
      }
      for (size_t i = 0; i < axes.size(); ++i)
        axes[i]->broadcast(tensor, roots[i])->wait_on_host();
    });
  }

  WorkPtr do_send(torch::Tensor, int, int, Record) override {
    refuse("sends no messages");
  }
  WorkPtr do_recv(torch::Tensor, int, int, Record) override {
    refuse("sends no messages");
  }

  [[noreturn]] void refuse(const char* what) const {
    throw UsageError(fmt::format(
        "[comm] group '{}' {}: its ranks are connected along the axes of "
        "the mesh alone; use the group of an axis, or make one by "
        "ProcessMesh::split()",
        name(),
        what));
  }

  WorkPtr do_barrier(Record record) override {
    return queued(record, [axes = axes_] {
      for (const CommunicatorPtr& axis : axes)
        axis->barrier();
    });
  }

  Axes axes_;
  std::shared_ptr<SequentialWorker> worker_;
};

}  // namespace

CommunicatorPtr make_grid_group(
    std::vector<CommunicatorPtr> axes,
    std::shared_ptr<SequentialWorker> worker,
    CommunicatorOptions options) {
  return std::make_shared<GridGroup>(
      std::move(axes), std::move(worker), std::move(options));
}

}  // namespace brigade

#include "brigade/tensor_parallel/replicated_gradients.h"

#include "brigade/base/check.h"

namespace brigade {
namespace {

using torch::Tensor;

// Every rank of the run sends its part to the others and adds all parts in rank
// order, so that the sums have the same bits everywhere.
Tensor exchange_and_add(Communicator& group, int ranks, const Tensor& mine) {
  const int first = group.rank() / ranks * ranks;
  std::vector<Tensor> parts(static_cast<size_t>(ranks));
  std::vector<WorkPtr> works;
  for (int i = 0; i < ranks; ++i) {
    Tensor& part = parts[static_cast<size_t>(i)];
    if (first + i == group.rank()) {
      part = mine;
      continue;
    }
    part = torch::empty_like(mine);
    // The lower rank of a pair sends first: a backend that carries out a pair's
    // messages one after the other would otherwise never get past the first.
    if (group.rank() < first + i) {
      works.push_back(group.send(mine, first + i));
      works.push_back(group.recv(part, first + i));
    } else {
      works.push_back(group.recv(part, first + i));
      works.push_back(group.send(mine, first + i));
    }
  }
  for (const WorkPtr& work : works)
    work->wait();
  Tensor sum = parts[0].clone();
  for (size_t i = 1; i < parts.size(); ++i)
    sum.add_(parts[i]);
  return sum;
}

}  // namespace

void sum_over_replicas(
    Communicator& group,
    int ranks,
    const std::vector<Tensor>& gradients) {
  BRIGADE_ASSERT(
      ranks >= 1 && group.size() % ranks == 0,
      "runs of {} ranks in a group of {}",
      ranks,
      group.size());
  if (ranks == 1 || gradients.empty())
    return;
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> flat;
  for (const Tensor& gradient : gradients)
    flat.push_back(gradient.view({-1}));
  Tensor packed = torch::cat(flat);
  if (ranks == group.size())
    group.all_reduce(packed)->wait();
  else
    packed = exchange_and_add(group, ranks, packed);
  int64_t offset = 0;
  for (const Tensor& gradient : flat) {
    gradient.copy_(packed.narrow(0, offset, gradient.numel()));
    offset += gradient.numel();
  }
}

}  // namespace brigade

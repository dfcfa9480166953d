#include "brigade/expert_parallel/expert_exchange.h"

#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/ops/carried.h"
#include "brigade/ops/expert_rows.h"
#include "brigade/ops/once_differentiable.h"

namespace brigade {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

RowSplits reversed(const RowSplits& splits) {
  return {.output = splits.input, .input = splits.output};
}

Tensor exchange_rows(
    Communicator& group,
    const Tensor& rows,
    const RowSplits& splits) {
  const int64_t received =
      std::accumulate(splits.output.begin(), splits.output.end(), int64_t{0});
  Tensor result = torch::empty({received, rows.size(1)}, rows.options());
  group.all_to_all_single(result, rows.contiguous(), splits)->wait();
  return result;
}

struct ExchangeCall {
  CommunicatorPtr group;
  RowSplits splits;
};

struct ExchangeNode : ops::OnceDifferentiable<ExchangeNode> {
  static constexpr const char* kName = "expert_exchange";

  static Tensor forward(
      AutogradContext* context,
      const Tensor& rows,
      const ExchangeCall& call) {
    ops::carry(context, call);
    return exchange_rows(*call.group, rows, call.splits);
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    const auto& call = ops::carried<ExchangeCall>(context);
    return {
        exchange_rows(*call.group, gradients[0], reversed(call.splits)),
        Tensor()};
  }
};

// What each rank has for each of this rank's experts: [ranks][experts].
std::vector<int64_t> exchange_counts(
    Communicator& group,
    const std::vector<int64_t>& counts) {
  Tensor mine = torch::tensor(counts, torch::kLong);
  Tensor theirs = torch::empty_like(mine);
  group.all_to_all(theirs, mine)->wait_on_host();
  const auto values = theirs.accessor<int64_t, 1>();
  std::vector<int64_t> result;
  for (int64_t i = 0; i < theirs.numel(); ++i)
    result.push_back(values[i]);
  return result;
}

}  // namespace

ExpertExchange::ExpertExchange(
    CommunicatorPtr group,
    const std::vector<int64_t>& counts,
    torch::Device device)
    : group_(std::move(group)) {
  const auto ranks = static_cast<size_t>(group_->size());
  BRIGADE_ASSERT(
      counts.size() % ranks == 0,
      "{} experts over {} ranks",
      counts.size(),
      ranks);
  if (is_alone()) {
    counts_ = counts;
    return;
  }
  const size_t experts = counts.size() / ranks;
  const std::vector<int64_t> arriving = exchange_counts(*group_, counts);
  counts_.assign(experts, 0);
  std::vector<int64_t> begins(arriving.size());  // as they arrive
  int64_t total = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    splits_.input.push_back(0);
    splits_.output.push_back(0);
    for (size_t expert = 0; expert < experts; ++expert) {
      const size_t at = rank * experts + expert;
      splits_.input.back() += counts[at];
      splits_.output.back() += arriving[at];
      counts_[expert] += arriving[at];
      begins[at] = total;
      total += arriving[at];
    }
  }
  std::vector<int64_t> by_expert;
  std::vector<int64_t> by_rank(static_cast<size_t>(total));
  for (size_t expert = 0; expert < experts; ++expert) {
    for (size_t rank = 0; rank < ranks; ++rank) {
      const size_t at = rank * experts + expert;
      for (int64_t from = begins[at]; from < begins[at] + arriving[at];
           ++from) {
        by_rank[static_cast<size_t>(from)] =
            static_cast<int64_t>(by_expert.size());
        by_expert.push_back(from);
      }
    }
  }
  by_expert_ = torch::tensor(by_expert, torch::kLong).to(device);
  by_rank_ = torch::tensor(by_rank, torch::kLong).to(device);
}

Tensor ExpertExchange::to_experts(const Tensor& rows) const {
  if (is_alone())
    return rows;
  const Tensor arrived =
      ExchangeNode::apply(rows, ExchangeCall{group_, splits_});
  return ops::permute_rows(arrived, by_expert_, by_rank_);
}

Tensor ExpertExchange::from_experts(const Tensor& rows) const {
  if (is_alone())
    return rows;
  return ExchangeNode::apply(
      ops::permute_rows(rows, by_rank_, by_expert_),
      ExchangeCall{group_, reversed(splits_)});
}

}  // namespace brigade

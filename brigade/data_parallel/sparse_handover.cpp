#include "brigade/data_parallel/sparse_handover.h"

#include <algorithm>
#include <utility>

namespace brigade {
namespace {

// The rows of one rank's gradient, each once: indices [rows] int64 and values
// [rows, C]; for all ranks together [R, most rows] and [R, most rows, C].
struct SparseRows {
  torch::Tensor indices;
  torch::Tensor values;
};

SparseRows rows_of(const torch::Tensor& grad, const torch::Tensor& param) {
  if (!grad.defined()) {
    return {
        torch::empty({0}, param.options().dtype(torch::kLong)),
        torch::empty({0, param.size(1)}, param.options())};
  }
  // It is dense if a dense gradient was added to it, as for a tied embedding.
  const auto sparse =
      (grad.is_sparse() ? grad : grad.to_sparse(/*sparse_dim=*/1)).coalesce();
  return {sparse.indices()[0], sparse.values()};
}

torch::Tensor padded(const torch::Tensor& rows, int64_t count) {
  auto sizes = rows.sizes().vec();
  sizes[0] = count;
  auto result = torch::zeros(sizes, rows.options());
  result.narrow(0, 0, rows.size(0)).copy_(rows);
  return result;
}

}  // namespace

bool SparseHandover::keep_share(int param, int ranks) {
  torch::Tensor& grad = grad_of(param);
  if (grad.defined())
    grad.mul_(1 / (mean_scale_of(param) * ranks));
  return grad.defined();
}

void SparseHandover::before_accumulate(int param, GradPart part) {
  if (part == GradPart::kFirst &&
      !step_of(param).shown.is_replaced_by(grad_of(param)))
    grad_of(param).reset();
}

void SparseHandover::give(int param, GradUse use) {
  auto reduced = std::exchange(step_of(param).reduced, torch::Tensor());
  if (use == GradUse::kUnused)
    reduced.reset();
  else if (const double scale = mean_scale_of(param); scale != 1.0)
    reduced.mul_(scale);
  grad_of(param) = reduced;
  if (reduced.defined())
    step_of(param).shown.note(reduced);
}

void SparseHandover::drop() {
  for (const Param& param : params()) {
    if (param.has_sparse_gradient)
      param.tensor.mutable_grad().reset();
  }
}

void SparseHandover::reduce() {
  for (const auto& members : groups_of(params())) {
    std::vector<int> sparse;
    for (const size_t param : members) {
      if (params()[param].has_sparse_gradient)
        sparse.push_back(static_cast<int>(param));
    }
    if (!sparse.empty())
      reduce_group(sparse, *params()[members.front()].group);
  }
}

void SparseHandover::reduce_group(
    const std::vector<int>& sparse,
    Communicator& group) {
  const int64_t ranks = group.size();
  const auto count = static_cast<int64_t>(sparse.size());
  std::vector<SparseRows> mine;
  auto my_counts = torch::empty({count}, torch::kLong);
  for (int64_t i = 0; i < count; ++i) {
    const int param = sparse[static_cast<size_t>(i)];
    mine.push_back(
        rows_of(grad_of(param), params()[static_cast<size_t>(param)].tensor));
    my_counts[i] = mine.back().indices.size(0);
  }
  auto counts = torch::empty({ranks, count}, torch::kLong);
  group.all_gather(counts, my_counts)->wait();

  std::vector<SparseRows> gathered;
  std::vector<WorkPtr> works;
  for (int64_t i = 0; i < count; ++i) {
    const auto& rows = mine[static_cast<size_t>(i)];
    const int64_t most = counts.select(1, i).max().item<int64_t>();
    const auto& all = gathered.emplace_back(SparseRows{
        torch::empty({ranks, most}, rows.indices.options()),
        torch::empty(
            {ranks, most, rows.values.size(1)}, rows.values.options())});
    if (most == 0)
      continue;
    works.push_back(group.all_gather(all.indices, padded(rows.indices, most)));
    works.push_back(group.all_gather(all.values, padded(rows.values, most)));
  }
  for (const WorkPtr& work : works)
    work->wait();

  for (int64_t i = 0; i < count; ++i) {
    const int param = sparse[static_cast<size_t>(i)];
    const SparseRows& all = gathered[static_cast<size_t>(i)];
    std::vector<torch::Tensor> indices;
    std::vector<torch::Tensor> values;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto rows = counts[rank][i].item<int64_t>();
      indices.push_back(all.indices[rank].narrow(0, 0, rows));
      values.push_back(all.values[rank].narrow(0, 0, rows));
    }
    step_of(param).reduced =
        torch::sparse_coo_tensor(
            torch::cat(indices).unsqueeze(0),
            torch::cat(values),
            params()[static_cast<size_t>(param)].tensor.sizes())
            .coalesce();
  }
}

std::unique_ptr<SparseHandover> make_sparse_handover(HandoverParts parts) {
  const bool is_any_sparse = std::any_of(
      parts.progress.params().begin(),
      parts.progress.params().end(),
      [](const Param& param) { return param.has_sparse_gradient; });
  return is_any_sparse ? std::make_unique<SparseHandover>(std::move(parts))
                       : nullptr;
}

}  // namespace brigade

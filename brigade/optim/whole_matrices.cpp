#include "brigade/optim/whole_matrices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/param/param.h"

namespace brigade {
namespace {

using nlohmann::json;

json to_json(const MatrixPiece& piece) {
  return {
      piece.name,
      piece.rows,
      piece.columns,
      piece.slice.dim,
      piece.slice.begin,
      piece.slice.end,
      piece.begin,
      piece.numel};
}

MatrixPiece from_json(const json& from) {
  MatrixPiece piece;
  piece.name = from[0];
  piece.rows = from[1];
  piece.columns = from[2];
  piece.slice.dim = from[3];
  piece.slice.begin = from[4];
  piece.slice.end = from[5];
  piece.begin = from[6];
  piece.numel = from[7];
  return piece;
}

// [rows, columns] of the shard.
std::vector<int64_t>
shape_of(const Slice& slice, int64_t rows, int64_t columns) {
  std::vector<int64_t> shape{rows, columns};
  if (slice.dim != kNotCut)
    shape[static_cast<size_t>(slice.dim)] = slice.length();
  return shape;
}

// Splits in the order of ranks, and where each rank's part begins.
std::vector<int64_t> begins_of(const std::vector<int64_t>& counts) {
  std::vector<int64_t> begins(counts.size(), 0);
  for (size_t i = 1; i < counts.size(); ++i)
    begins[i] = begins[i - 1] + counts[i - 1];
  return begins;
}

}  // namespace

WholeMatrices::WholeMatrices(
    CommunicatorPtr ranks,
    std::vector<MatrixPiece> mine,
    WholeMatricesOptions options)
    : ranks_(std::move(ranks)),
      mine_(std::move(mine)),
      options_(std::move(options)),
      costs_(static_cast<size_t>(ranks_->size()), 0) {
  json text = json::array();
  for (size_t i = 0; i < mine_.size(); ++i) {
    text.push_back(to_json(mine_[i]));
    mine_of_[mine_[i].name].push_back(i);
  }
  const auto texts = Agreement(*ranks_).texts(text.dump());
  for (size_t rank = 0; rank < texts.size(); ++rank)
    add_pieces(static_cast<int>(rank), texts[rank]);
  for (const Matrix& matrix : matrices_)
    check_is_whole(matrix);
  choose_owners();
  choose_senders();
  make_rounds();
}

void WholeMatrices::add_pieces(int rank, const std::string& text) {
  for (const json& each : json::parse(text)) {
    const MatrixPiece piece = from_json(each);
    const auto [found, is_new] = by_name_.emplace(piece.name, matrices_.size());
    if (is_new)
      matrices_.push_back(
          {.name = piece.name, .rows = piece.rows, .columns = piece.columns});
    Matrix* const matrix = &matrices_[found->second];
    auto part = std::find_if(
        matrix->parts.begin(), matrix->parts.end(), [&](const Part& known) {
          return known.slice == piece.slice && known.begin == piece.begin &&
                 known.numel == piece.numel;
        });
    if (part == matrix->parts.end())
      part = matrix->parts.insert(
          matrix->parts.end(), {piece.slice, piece.begin, piece.numel});
    part->holders.push_back(rank);
  }
}

void WholeMatrices::check_is_whole(const Matrix& matrix) const {
  int64_t numel = 0;
  for (const Part& part : matrix.parts)
    numel += part.numel;
  if (numel == matrix.numel())
    return;
  throw Error(
      ExitCode::kUnexpected,
      fmt::format(
          "[optimizer] of the {} elements of matrix '{}' the {} ranks of group "
          "'{}' have {}: the group must be all ranks that have a part of it, "
          "each element on one or in equal parts on several",
          matrix.numel(),
          matrix.name,
          ranks_->size(),
          ranks_->name(),
          numel));
}

void WholeMatrices::choose_owners() {
  std::vector<size_t> order(matrices_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto cost = [&](size_t i) {
    return options_.cost(matrices_[i].rows, matrices_[i].columns);
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return cost(a) > cost(b);
  });
  for (const size_t i : order) {
    const auto least = std::min_element(costs_.begin(), costs_.end());
    matrices_[i].owner = static_cast<int>(least - costs_.begin());
    *least += cost(i);
  }
}

// The one next to the owner, which is the owner itself where it has the part.
void WholeMatrices::choose_senders() {
  for (Matrix& matrix : matrices_) {
    for (Part& part : matrix.parts) {
      part.sender = *std::min_element(
          part.holders.begin(), part.holders.end(), [&](int a, int b) {
            return std::abs(a - matrix.owner) < std::abs(b - matrix.owner);
          });
    }
  }
}

void WholeMatrices::make_rounds() {
  // By owner: the round that it is in, and what it has there.
  std::vector<size_t> round(costs_.size(), 0);
  std::vector<int64_t> numel(costs_.size(), 0);
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const auto owner = static_cast<size_t>(matrices_[i].owner);
    const int64_t more = matrices_[i].numel();
    if (numel[owner] > 0 && numel[owner] + more > options_.round_numel) {
      ++round[owner];
      numel[owner] = 0;
    }
    numel[owner] += more;
    if (rounds_.size() <= round[owner])
      rounds_.resize(round[owner] + 1);
    rounds_[round[owner]].push_back(i);
  }
}

torch::Tensor WholeMatrices::piece_of(
    const Matrix& matrix,
    const Part& part,
    const std::vector<torch::Tensor>& pieces) const {
  const auto found = mine_of_.find(matrix.name);
  if (found == mine_of_.end())
    return {};
  for (const size_t i : found->second) {
    if (mine_[i].begin == part.begin && mine_[i].numel == part.numel &&
        mine_[i].slice == part.slice)
      return pieces[i];
  }
  return {};
}

WholeMatrices::Traffic WholeMatrices::send_to_owners(
    const Round& round,
    const std::vector<torch::Tensor>& pieces) const {
  const int me = ranks_->rank();
  Traffic traffic;
  traffic.splits.input.resize(costs_.size(), 0);
  traffic.splits.output.resize(costs_.size(), 0);
  std::vector<std::vector<torch::Tensor>> to(costs_.size());
  for (const size_t i : round) {
    const Matrix& matrix = matrices_[i];
    const auto owner = static_cast<size_t>(matrix.owner);
    for (const Part& part : matrix.parts) {
      if (part.sender == me) {
        to[owner].push_back(piece_of(matrix, part, pieces).to(options_.wire));
        traffic.splits.input[owner] += part.numel;
      }
      if (matrix.owner == me)
        traffic.splits.output[static_cast<size_t>(part.sender)] += part.numel;
    }
  }
  launch(traffic, to);
  return traffic;
}

void WholeMatrices::launch(
    Traffic& traffic,
    const std::vector<std::vector<torch::Tensor>>& to) const {
  const auto options =
      torch::dtype(options_.wire).device(ranks_->options().device);
  std::vector<torch::Tensor> in_order{torch::empty({0}, options)};
  for (const auto& each : to)
    in_order.insert(in_order.end(), each.begin(), each.end());
  traffic.input = torch::cat(in_order);
  traffic.output = torch::empty(
      {std::accumulate(
          traffic.splits.output.begin(),
          traffic.splits.output.end(),
          int64_t{0})},
      options);
  traffic.work =
      ranks_->all_to_all_single(traffic.output, traffic.input, traffic.splits);
}

std::vector<torch::Tensor> WholeMatrices::put_together(
    const Round& round,
    const Traffic& arrived) const {
  std::vector<torch::Tensor> wholes;
  std::vector<int64_t> at = begins_of(arrived.splits.output);
  for (const size_t i : round) {
    const Matrix& matrix = matrices_[i];
    if (matrix.owner != ranks_->rank())
      continue;
    const auto whole = torch::empty(
        {matrix.rows, matrix.columns},
        arrived.output.options().dtype(torch::kFloat));
    // Shards one after the other: their ranges need not be neighbours.
    std::vector<std::pair<Slice, torch::Tensor>> shards;
    for (const Part& part : matrix.parts) {
      auto shard =
          std::find_if(shards.begin(), shards.end(), [&](const auto& known) {
            return known.first == part.slice;
          });
      if (shard == shards.end())
        shard = shards.insert(
            shards.end(),
            {part.slice,
             torch::empty(
                 shape_of(part.slice, matrix.rows, matrix.columns),
                 whole.options())});
      int64_t& from = at[static_cast<size_t>(part.sender)];
      shard->second.view({-1})
          .narrow(0, part.begin, part.numel)
          .copy_(arrived.output.narrow(0, from, part.numel));
      from += part.numel;
    }
    for (const auto& [slice, values] : shards)
      take_slice(whole, slice).copy_(values);
    wholes.push_back(whole);
  }
  return wholes;
}

WholeMatrices::Traffic WholeMatrices::send_back(
    const Round& round,
    const std::vector<torch::Tensor>& results) const {
  const int me = ranks_->rank();
  Traffic traffic;
  traffic.splits.input.resize(costs_.size(), 0);
  traffic.splits.output.resize(costs_.size(), 0);
  std::vector<std::vector<torch::Tensor>> to(costs_.size());
  size_t next = 0;
  for (const size_t i : round) {
    const Matrix& matrix = matrices_[i];
    const bool is_mine = matrix.owner == me;
    const torch::Tensor whole =
        is_mine ? results[next++].to(options_.wire) : torch::Tensor();
    for (const Part& part : matrix.parts) {
      torch::Tensor values;
      if (is_mine)
        values = take_slice(whole, part.slice)
                     .reshape({-1})
                     .narrow(0, part.begin, part.numel);
      for (const int holder : part.holders) {
        if (is_mine) {
          to[static_cast<size_t>(holder)].push_back(values);
          traffic.splits.input[static_cast<size_t>(holder)] += part.numel;
        }
        if (holder == me)
          traffic.splits.output[static_cast<size_t>(matrix.owner)] +=
              part.numel;
      }
    }
  }
  launch(traffic, to);
  return traffic;
}

void WholeMatrices::take_back(
    const Round& round,
    const Traffic& arrived,
    const std::vector<torch::Tensor>& pieces) const {
  std::vector<int64_t> at = begins_of(arrived.splits.output);
  for (const size_t i : round) {
    const Matrix& matrix = matrices_[i];
    int64_t& from = at[static_cast<size_t>(matrix.owner)];
    for (const Part& part : matrix.parts) {
      torch::Tensor mine = piece_of(matrix, part, pieces);
      if (!mine.defined())
        continue;
      mine.copy_(arrived.output.narrow(0, from, part.numel));
      from += part.numel;
    }
  }
}

void WholeMatrices::apply(
    const std::vector<torch::Tensor>& pieces,
    const Compute& compute) const {
  const torch::NoGradGuard no_grad;
  Traffic coming;
  if (!rounds_.empty())
    coming = send_to_owners(rounds_.front(), pieces);
  for (size_t i = 0; i < rounds_.size(); ++i) {
    coming.work->wait();
    std::vector<torch::Tensor> wholes = put_together(rounds_[i], coming);
    if (i + 1 < rounds_.size())
      coming = send_to_owners(rounds_[i + 1], pieces);
    for (torch::Tensor& whole : wholes)
      whole = compute(whole);
    const Traffic back = send_back(rounds_[i], wholes);
    back.work->wait();
    take_back(rounds_[i], back, pieces);
  }
}

}  // namespace brigade

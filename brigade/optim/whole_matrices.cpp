#include "brigade/optim/whole_matrices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/param/param.h"

namespace brigade {
namespace {

using nlohmann::json;

// The fields of a MatrixPiece in the order in which they are sent, to be read
// or written.
auto fields_of(auto& piece) {
  return std::tie(
      piece.name,
      piece.place,
      piece.rows,
      piece.columns,
      piece.slice.dim,
      piece.slice.begin,
      piece.slice.end,
      piece.begin,
      piece.numel);
}

// [rows, columns] of the shard.
std::vector<int64_t> shape_of(const MatrixPiece& piece) {
  std::vector<int64_t> shape{piece.rows, piece.columns};
  if (piece.slice.dim != kNotCut)
    shape[static_cast<size_t>(piece.slice.dim)] = piece.slice.length();
  return shape;
}

// Where each rank's part begins, with `counts` in the order of ranks.
std::vector<int64_t> begins_of(const std::vector<int64_t>& counts) {
  std::vector<int64_t> begins(counts.size(), 0);
  for (size_t i = 1; i < counts.size(); ++i)
    begins[i] = begins[i - 1] + counts[i - 1];
  return begins;
}

}  // namespace

WholeMatrices::WholeMatrices(
    CommunicatorPtr ranks,
    const std::vector<MatrixPiece>& mine,
    WholeMatricesOptions options)
    : ranks_(std::move(ranks)),
      options_(std::move(options)),
      mine_(mine.size()),
      costs_(static_cast<size_t>(ranks_->size()), 0) {
  json text = json::array();
  for (const MatrixPiece& piece : mine)
    text.push_back(fields_of(piece));
  const auto texts = Agreement(*ranks_).texts(text.dump());
  std::map<std::string, size_t> by_name;
  for (size_t rank = 0; rank < texts.size(); ++rank)
    add_pieces(static_cast<int>(rank), texts[rank], by_name);
  for (const Matrix& matrix : matrices_)
    check_is_whole(matrix);
  std::stable_sort(
      matrices_.begin(), matrices_.end(), [](const Matrix& a, const Matrix& b) {
        return a.pieces.front().place < b.pieces.front().place;
      });
  choose_owners();
  choose_senders();
  make_rounds();
  coming_.resize(rounds_.size());
  unsent_ = rounds_.size();
}

WholeMatrices::~WholeMatrices() {
  coming_.push_back(std::move(back_));
  for (const Traffic& traffic : coming_) {
    try {
      if (traffic.work)
        traffic.work->wait();
    } catch (const std::exception&) {
      // A lost peer was reported to the caller that waited.
    }
  }
}

void WholeMatrices::add_pieces(
    int rank,
    const std::string& text,
    std::map<std::string, size_t>& by_name) {
  int index = 0;
  for (const json& each : json::parse(text)) {
    MatrixPiece piece;
    size_t field = 0;
    std::apply(
        [&](auto&... of) { (each[field++].get_to(of), ...); },
        fields_of(piece));
    const auto [found, is_new] = by_name.emplace(piece.name, matrices_.size());
    if (is_new)
      matrices_.emplace_back();
    std::vector<MatrixPiece>& pieces = matrices_[found->second].pieces;
    auto known = std::find_if(pieces.begin(), pieces.end(), [&](auto& other) {
      return fields_of(other) == fields_of(piece);
    });
    if (known == pieces.end())
      known = pieces.insert(pieces.end(), piece);
    known->holders.push_back(rank);
    if (rank == ranks_->rank())
      known->mine = index++;
  }
}

void WholeMatrices::check_is_whole(const Matrix& matrix) const {
  int64_t numel = 0;
  for (const MatrixPiece& piece : matrix.pieces)
    numel += piece.numel;
  if (numel == matrix.numel())
    return;
  throw UsageError(fmt::format(
      "[optimizer] of the {} elements of matrix '{}' the {} ranks of group "
      "'{}' have {}: the group must be all ranks that have a part of it, "
      "each element on one or in equal parts on several",
      matrix.numel(),
      matrix.name(),
      ranks_->size(),
      ranks_->name(),
      numel));
}

void WholeMatrices::choose_owners() {
  std::vector<size_t> order(matrices_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto cost = [&](size_t i) {
    return options_.cost(matrices_[i].rows(), matrices_[i].columns());
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

// The sender of a piece is the holder next to the owner: the owner itself if it
// has the piece.
void WholeMatrices::choose_senders() {
  for (Matrix& matrix : matrices_) {
    for (MatrixPiece& piece : matrix.pieces) {
      piece.sender = *std::min_element(
          piece.holders.begin(), piece.holders.end(), [&](int a, int b) {
            return std::abs(a - matrix.owner) < std::abs(b - matrix.owner);
          });
      has_pieces_elsewhere_ |= piece.sender != matrix.owner;
    }
  }
}

void WholeMatrices::make_rounds() {
  // By owner: its present round, and the elements that it has in it.
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
    for (MatrixPiece& piece : matrices_[i].pieces) {
      piece.round = round[owner];
      if (piece.mine >= 0)
        mine_[static_cast<size_t>(piece.mine)] = &piece;
    }
  }
}

WholeMatrices::Traffic WholeMatrices::send_to_owners(const Round& round) const {
  const int me = ranks_->rank();
  Traffic traffic = make_traffic();
  for (const size_t i : round) {
    const Matrix& matrix = matrices_[i];
    const auto owner = static_cast<size_t>(matrix.owner);
    for (const MatrixPiece& piece : matrix.pieces) {
      if (piece.sender == me) {
        traffic.to[owner].push_back(piece.values.to(options_.wire));
        traffic.splits.input[owner] += piece.numel;
      }
      if (matrix.owner == me)
        traffic.splits.output[static_cast<size_t>(piece.sender)] += piece.numel;
    }
  }
  launch(traffic);
  return traffic;
}

WholeMatrices::Traffic WholeMatrices::make_traffic() const {
  Traffic traffic;
  traffic.splits.input.resize(costs_.size(), 0);
  traffic.splits.output.resize(costs_.size(), 0);
  traffic.to.resize(costs_.size());
  return traffic;
}

void WholeMatrices::launch(Traffic& traffic) const {
  const auto options =
      torch::dtype(options_.wire).device(ranks_->options().device);
  std::vector<torch::Tensor> in_order{torch::empty({0}, options)};
  for (const auto& each : std::exchange(traffic.to, {}))
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
        {matrix.rows(), matrix.columns()},
        arrived.output.options().dtype(torch::kFloat));
    // Puts shards together one by one: their ranges need not be neighbours.
    std::vector<std::pair<Slice, torch::Tensor>> shards;
    for (const MatrixPiece& piece : matrix.pieces) {
      auto shard = std::find_if(shards.begin(), shards.end(), [&](auto& known) {
        return known.first == piece.slice;
      });
      if (shard == shards.end())
        shard = shards.insert(
            shards.end(),
            {piece.slice, torch::empty(shape_of(piece), whole.options())});
      int64_t& from = at[static_cast<size_t>(piece.sender)];
      shard->second.view({-1})
          .narrow(0, piece.begin, piece.numel)
          .copy_(arrived.output.narrow(0, from, piece.numel));
      from += piece.numel;
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
  Traffic traffic = make_traffic();
  size_t next = 0;
  for (const size_t i : round) {
    const Matrix& matrix = matrices_[i];
    const bool is_mine = matrix.owner == me;
    const torch::Tensor whole =
        is_mine ? results[next++].to(options_.wire) : torch::Tensor();
    for (const MatrixPiece& piece : matrix.pieces) {
      torch::Tensor values;
      if (is_mine)
        values = take_slice(whole, piece.slice)
                     .reshape({-1})
                     .narrow(0, piece.begin, piece.numel);
      for (size_t h = 0; is_mine && h < piece.holders.size(); ++h) {
        const auto holder = static_cast<size_t>(piece.holders[h]);
        traffic.to[holder].push_back(values);
        traffic.splits.input[holder] += piece.numel;
      }
      if (piece.mine >= 0)
        traffic.splits.output[static_cast<size_t>(matrix.owner)] += piece.numel;
    }
  }
  launch(traffic);
  return traffic;
}

void WholeMatrices::finish() {
  const torch::NoGradGuard no_grad;
  if (!back_.work)
    return;
  const Traffic arrived = std::exchange(back_, {});
  arrived.work->wait();
  std::vector<int64_t> at = begins_of(arrived.splits.output);
  for (const size_t i : rounds_[back_round_]) {
    Matrix& matrix = matrices_[i];
    int64_t& from = at[static_cast<size_t>(matrix.owner)];
    for (MatrixPiece& piece : matrix.pieces) {
      if (piece.mine < 0)
        continue;
      piece.values.copy_(arrived.output.narrow(0, from, piece.numel));
      piece.values.reset();
      from += piece.numel;
    }
  }
}

void WholeMatrices::send_ahead() {
  const torch::NoGradGuard no_grad;
  --unsent_;
  coming_[unsent_] = send_to_owners(rounds_[unsent_]);
  for (MatrixPiece* piece : mine_) {
    if (piece->round == unsent_)
      piece->values.reset();
  }
}

void WholeMatrices::send_rest() {
  const torch::NoGradGuard no_grad;
  for (; unsent_ > 0; --unsent_)
    coming_[unsent_ - 1] = send_to_owners(rounds_[unsent_ - 1]);
}

void WholeMatrices::drop() {
  for (Traffic& traffic : coming_) {
    if (const WorkPtr work = std::exchange(traffic, {}).work)
      work->wait();
  }
  unsent_ = rounds_.size();
}

void WholeMatrices::begin() {
  const torch::NoGradGuard no_grad;
  if (!rounds_.empty() && !coming_.front().work)
    coming_.front() = send_to_owners(rounds_.front());
}

void WholeMatrices::finish_but_last(const Compute& compute) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < rounds_.size(); ++i) {
    coming_[i].work->wait();
    std::vector<torch::Tensor> wholes = put_together(rounds_[i], coming_[i]);
    coming_[i] = {};
    if (i + 1 < rounds_.size() && !coming_[i + 1].work)
      coming_[i + 1] = send_to_owners(rounds_[i + 1]);
    for (torch::Tensor& whole : wholes)
      whole = compute(whole);
    finish();  // the previous round
    back_ = send_back(rounds_[i], wholes);
    back_round_ = i;
  }
  unsent_ = rounds_.size();
}

std::vector<int> WholeMatrices::places_of(const Round& round) const {
  std::vector<int> places;
  for (const size_t i : round)
    places.push_back(matrices_[i].pieces.front().place);
  return places;
}

}  // namespace brigade

// Matrices that lie in pieces on the ranks of a group: cut along rows or
// columns by tensor parallelism, each shard flat among ZeRO's owners, or whole
// on several ranks. apply() puts each of them together on one rank, its owner,
// has the result computed there, and sends it back to all ranks that have a
// piece.
//
// Owners are chosen once, so that each has about as much to compute: the
// costliest matrix first goes to the rank with the least so far. The choice of
// owners changes no bit of a result.
//
// Per call each rank sends every element of its pieces once to the owner
// (without ZeRO only one of the ranks that have it does), and the owner sends
// every element of the result to each rank that has it, in the dtype of the
// wire: with R ranks that each have 1/R of M elements, (R - 1) / R^2 M elements
// each way. There are two all-to-alls per round; a round has a few matrices of
// each owner. While one round is computed, the next round's pieces and the
// previous round's results are under way. Rounds follow MatrixPiece::place, the
// order of forward. Rounds that are sent ahead, while backward computes
// gradients, are sent from the last one on, and the last one's results may
// arrive during the next forward.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/model_spec/shard.h"

namespace brigade {

// This rank's piece of a matrix: elements [begin, begin + numel) of its shard,
// flat.
struct MatrixPiece {
  std::string name;  // the same on all ranks
  int place = 0;     // its matrix's in the order of rounds; the same too
  int64_t rows = 0;  // of the whole matrix
  int64_t columns = 0;
  Slice slice;  // this rank's shard of it
  int64_t begin = 0;
  int64_t numel = 0;

  // ---- filled in by WholeMatrices

  std::vector<int> holders = {};  // the ranks that have it
  int sender = 0;                 // the one that sends it to the owner
  int mine = -1;  // its index among this rank's; -1: it has none of it
  size_t round = 0;
  torch::Tensor values = {};  // see WholeMatrices::set()
};

inline constexpr int64_t kRoundNumel = int64_t{1} << 22;

// How matrices are dealt out to owners.
struct WholeMatricesOptions {
  // The cost of a matrix for its owner.
  std::function<double(int64_t rows, int64_t columns)> cost;
  torch::ScalarType wire = torch::kFloat;
  // The most elements of a round per owner, unless a single matrix has more.
  int64_t round_numel = kRoundNumel;
};

class WholeMatrices {
 public:
  // The function that an owner applies to a whole matrix.
  using Compute = std::function<torch::Tensor(const torch::Tensor& whole)>;

  // Collective over `ranks`, which hold all pieces of the matrices. Costs two
  // all-gathers. Throws a UsageError naming a matrix whose pieces, equal ones
  // counted once, do not have as many elements as it.
  WholeMatrices(
      CommunicatorPtr ranks,
      const std::vector<MatrixPiece>& mine,
      WholeMatricesOptions options);
  ~WholeMatrices();  // waits for what is under way
  WholeMatrices(const WholeMatrices&) = delete;
  WholeMatrices& operator=(const WholeMatrices&) = delete;

  // Collective. pieces: for each piece of the constructor its values, flat
  // float32; read, and overwritten by its part of the result. `compute` maps
  // the whole [rows, columns] float32 matrix to one of the same shape.
  void apply(const std::vector<torch::Tensor>& pieces, const Compute& compute) {
    for (size_t i = 0; i < pieces.size(); ++i)
      set(i, pieces[i]);
    begin();
    finish_but_last(compute);
    finish();
  }

  // ---- apply() in parts, each collective but set(), in this order

  // Sets the values of a piece of this rank, by its index. send_ahead() lets go
  // of them; otherwise they are kept until the result is in them.
  void set(size_t piece, torch::Tensor values) {
    mine_[piece]->values = std::move(values);
  }
  // MatrixPiece::place of the matrices that send_ahead() would send; the same
  // on all ranks.
  std::vector<int> places_of_next_ahead() const {
    return places_of(rounds_[unsent_ - 1]);
  }
  bool are_all_ahead() const { return unsent_ == 0; }
  // Sends the last round that was not sent yet, whose values must be set. If
  // one rank sends ahead, all have to send all rounds so, each when it can,
  // before begin() or drop().
  void send_ahead();
  // Sends all rounds that were not sent yet; their values stay.
  void send_rest();
  // Whether the round of this piece of this rank was sent ahead.
  bool is_sent(size_t piece) const { return mine_[piece]->round >= unsent_; }
  // Drops what was sent ahead; the next call begins from the start.
  void drop();

  // Precondition: all values are set again, as apply() sets them; those that
  // were sent ahead are not read, only overwritten.
  void begin();
  // Computes all rounds; puts all results but the last round's into the pieces.
  void finish_but_last(const Compute& compute);
  // Puts the results that are under way, which are the last round's, into the
  // pieces. Not collective: it only waits. A second call does nothing.
  void finish();
  // MatrixPiece::place of the last round's matrices, the same on all ranks.
  std::vector<int> places_of_last() const {
    return rounds_.empty() ? std::vector<int>() : places_of(rounds_.back());
  }
  // Whether this piece of this rank belongs to the last round.
  bool is_of_last(size_t piece) const {
    return mine_[piece]->round + 1 == rounds_.size();
  }

  int ranks() const { return ranks_->size(); }
  // Whether some owner lacks a piece that another rank has; if none does, there
  // is nothing to send ahead. The same on all ranks.
  bool has_pieces_elsewhere() const { return has_pieces_elsewhere_; }

  // The cost of each rank's matrices, by rank of the group.
  const std::vector<double>& costs() const { return costs_; }

 private:
  struct Matrix {
    std::vector<MatrixPiece> pieces;
    int owner = 0;
    const std::string& name() const { return pieces.front().name; }
    int64_t rows() const { return pieces.front().rows; }
    int64_t columns() const { return pieces.front().columns; }
    int64_t numel() const { return rows() * columns(); }
  };
  // Matrices that travel together, in an order that all ranks share.
  using Round = std::vector<size_t>;
  // The buffers of one all-to-all.
  struct Traffic {
    torch::Tensor input;
    torch::Tensor output;
    RowSplits splits;
    WorkPtr work;
    std::vector<std::vector<torch::Tensor>> to;  // by receiving rank
  };

  // by_name: into matrices_.
  void add_pieces(
      int rank,
      const std::string& text,
      std::map<std::string, size_t>& by_name);
  void check_is_whole(const Matrix& matrix) const;
  void choose_owners();
  void choose_senders();
  void make_rounds();
  // Launches sending this rank's pieces of a round's matrices to the owners.
  Traffic send_to_owners(const Round& round) const;
  // Makes an empty exchange; launch() starts it.
  Traffic make_traffic() const;
  void launch(Traffic& traffic) const;
  // The whole matrices of the round that this rank owns, in order.
  std::vector<torch::Tensor> put_together(
      const Round& round,
      const Traffic& arrived) const;
  // Launches sending the results of put_together()'s matrices to the pieces'
  // holders.
  Traffic send_back(
      const Round& round,
      const std::vector<torch::Tensor>& results) const;
  std::vector<int> places_of(const Round& round) const;

  CommunicatorPtr ranks_;
  WholeMatricesOptions options_;
  std::vector<Matrix> matrices_;
  std::vector<MatrixPiece*> mine_;  // of matrices_, in the caller's order
  std::vector<Round> rounds_;
  std::vector<double> costs_;
  bool has_pieces_elsewhere_ = false;

  // ---- what is under way
  std::vector<Traffic> coming_;  // by round, on its way to the owners
  size_t unsent_ = 0;            // rounds before it were not sent ahead
  Traffic back_;                 // without a work: none
  size_t back_round_ = 0;
};

}  // namespace brigade

// Expert parallel: each rank of a group holds an equal part of the experts, in
// rank order, and rows of tokens go to the rank that holds their expert and
// back.
//
// Sizes are exchanged first, E / R integers with each rank, and read on the
// host. Then rows: those that go to other ranks, once there and once back, and
// the same in backward. No row is dropped or padded. All ranks of the group
// take part in every exchange, in one order, also with no rows.
//
// Rows are under way while the thread computes. Each rank's experts are in one
// part or in several, whose rows travel one part after the other:
//
//   send(rows)       begins the exchange of all parts
//   arrive(part)     waits for one; then its experts compute,
//   send_back(part)  begins the way back
//   arrive_back()    waits for all parts
//
// Backward does the same in the opposite direction: gradients of operations
// between two of these calls are computed while rows are under way too.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "brigade/comm/communicator.h"

namespace brigade {

// The experts of all ranks in the order in which their rows are sent: by part,
// then by rank. A part is a range of each rank's experts.
std::vector<int64_t>
sending_order(int64_t experts, int64_t ranks, int64_t parts);

class ExpertExchange {
 public:
  ExpertExchange() = default;
  // Collective. counts: this rank's rows for each of the E experts of all
  // ranks; the group's size divides E. `parts`: at most E / R. `device`: of the
  // rows.
  ExpertExchange(
      CommunicatorPtr group,
      const std::vector<int64_t>& counts,
      int64_t parts,
      torch::Device device);

  // A part of this rank's experts: the first of them, and the rows of each
  // from all ranks.
  struct Part {
    int64_t first_expert = 0;
    std::vector<int64_t> counts;
  };
  const std::vector<Part>& parts() const { return parts_; }

  // Rows on their way in one direction.
  struct Passage;
  struct UnderWay {
    std::shared_ptr<Passage> passage;
    // One tensor per part; their values are not there yet.
    std::vector<torch::Tensor> parts;
  };

  // Collective, as is what follows. rows: [R, C], by sending_order().
  UnderWay send(const torch::Tensor& rows) const;
  // Once for each part. Returns the rows of its experts, by expert, then by the
  // rank that they came from.
  torch::Tensor arrive(const UnderWay& rows, size_t part) const;
  // The reverse: adds the part to `back`, which is empty before the first one.
  void send_back(UnderWay& back, const torch::Tensor& rows) const;
  torch::Tensor arrive_back(const UnderWay& back) const;

 private:
  CommunicatorPtr group_;
  std::vector<Part> parts_;

  // How the rows of a part travel.
  struct Route {
    RowSplits splits;       // of send()
    int64_t first_row = 0;  // in sending_order()
    int64_t sent = 0;
    int64_t received = 0;
    // Between what arrives, by rank and then by expert, and arrive()'s result.
    torch::Tensor by_expert, by_rank;
  };
  using Routes = std::vector<Route>;
  std::shared_ptr<const Routes> routes_;  // null: alone
};

}  // namespace brigade

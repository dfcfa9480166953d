// Tensors between the stages of a pipeline: activations to the next stage,
// gradients back. Shape and dtype are the same for every transfer and known
// to both ends, so that only the tensor is sent.
//
// Cost of a transfer: one message of B * T_local * C elements (N/tp * C with
// sequence parallel). A step of m micro-batches on S stages makes 2 * m * (S -
// 1) of them (those between stages on one rank are none).
//
// post_send() and post_recv() return at once; wait_recv() blocks until the
// tensor is there. Matched by (peer, tag), the tag being made of micro-batch,
// stage and direction, and in the order of posting within a tag, so that
// consecutive steps need no barrier between them.
//
// All calls come from the thread that runs the schedule. Errors: CommError
// naming stage, micro-batch and direction.
#pragma once

#include <torch/types.h>

#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/schedule/schedule.h"

namespace brigade {

struct TransferOptions {
  // What the model passes on: [N, C] with N = B * T_local tokens, or [N/tp, C]
  // with sequence parallel; any shape here.
  std::vector<int64_t> shape;
  torch::ScalarType dtype = torch::kFloat;
  torch::Device device = torch::kCPU;
};

class StageTransfers {
 public:
  // `pp`: the communicator of the pipeline; its rank r holds the schedule's
  // row r.
  StageTransfers(
      CommunicatorPtr pp,
      const Schedule& schedule,
      TransferOptions options);

  // Throws UsageError when the tensor is not what was announced.
  void post_send(const Action& send, torch::Tensor tensor);
  void post_recv(const Action& recv);
  // The tensor of a posted receive.
  torch::Tensor wait_recv(const Action& recv);

  // The oldest send that must end before the next computation (kSendSlack), if
  // there is one; then wait_oldest_send() waits for it and releases its tensor.
  // Nothing releases it sooner: c10d reports the end of a send only by wait().
  std::optional<Action> due_send() const;
  void wait_oldest_send();
  // Call after each computation: counts how long sends have been posted.
  void computation_done();
  // Blocks until every send has ended.
  void wait_sends();

 private:
  struct Sending {
    Action action;
    WorkPtr work;  // holds the tensor
    int computations_since = 0;
  };
  struct Receiving {
    torch::Tensor tensor;
    WorkPtr work;
  };
  using Key = std::pair<int, int>;  // tag of the sending side, peer

  int tag(const Action& action) const;
  // Runs `operation`, giving a CommError the words of `action`.
  template <typename Operation>
  auto named(const Action& action, const Operation& operation);

  CommunicatorPtr pp_;
  Schedule shape_of_pipeline_;  // without its table
  TransferOptions options_;
  std::deque<Sending> sending_;
  std::map<Key, Receiving> receiving_;
};

}  // namespace brigade

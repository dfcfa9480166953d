#include "brigade/pipeline_parallel/p2p.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "brigade/base/check.h"
#include "brigade/base/error.h"

namespace brigade {
namespace {

// The stage at the other end.
int other_stage(const Action& action) {
  return is_send(action.kind) == is_activation(action.kind) ? action.stage + 1
                                                            : action.stage - 1;
}

}  // namespace

StageTransfers::StageTransfers(
    CommunicatorPtr pp,
    const Schedule& schedule,
    TransferOptions options)
    : pp_(std::move(pp)), options_(std::move(options)) {
  shape_of_pipeline_.ranks = schedule.ranks;
  shape_of_pipeline_.virtual_stages = schedule.virtual_stages;
  shape_of_pipeline_.micro_batches = schedule.micro_batches;
}

int StageTransfers::tag(const Action& action) const {
  // Both ends count by the sending stage.
  const int sender = is_send(action.kind) ? action.stage : other_stage(action);
  return 2 * (action.micro_batch * shape_of_pipeline_.stages() + sender) +
         (is_activation(action.kind) ? 0 : 1);
}

template <typename Operation>
auto StageTransfers::named(const Action& action, const Operation& operation) {
  try {
    return operation();
  } catch (const CommError& error) {
    throw CommError(fmt::format(
        "[pipeline_parallel] stage {} could not {} the {} of micro-batch {} {} "
        "stage {} (rank {} of group '{}'): {}",
        action.stage,
        is_send(action.kind) ? "send" : "receive",
        is_activation(action.kind) ? "activation" : "gradient",
        action.micro_batch,
        is_send(action.kind) ? "to" : "from",
        other_stage(action),
        peer_of(shape_of_pipeline_, action),
        pp_->name(),
        error.what()));
  }
}

void StageTransfers::post_send(const Action& send, torch::Tensor tensor) {
  if (!tensor.defined() || tensor.sizes() != options_.shape ||
      tensor.scalar_type() != options_.dtype)
    throw UsageError(fmt::format(
        "[pipeline_parallel] {}: the tensor is {}, but transfers are [{}] "
        "{}",
        describe(send),
        tensor.defined() ? fmt::format(
                               "[{}] {}",
                               fmt::join(tensor.sizes(), ", "),
                               c10::toString(tensor.scalar_type()))
                         : "undefined",
        fmt::join(options_.shape, ", "),
        c10::toString(options_.dtype)));
  named(send, [&] {
    sending_.push_back(
        {send,
         pp_->send(
             tensor.contiguous(), peer_of(shape_of_pipeline_, send), tag(send)),
         0});
  });
}

void StageTransfers::post_recv(const Action& recv) {
  const int peer = peer_of(shape_of_pipeline_, recv);
  torch::Tensor tensor = torch::empty(
      options_.shape,
      torch::TensorOptions().dtype(options_.dtype).device(options_.device));
  named(recv, [&] {
    const bool is_new =
        receiving_
            .emplace(
                Key{tag(recv), peer},
                Receiving{tensor, pp_->recv(tensor, peer, tag(recv))})
            .second;
    BRIGADE_ASSERT(is_new, "{} is posted twice", describe(recv));
  });
}

torch::Tensor StageTransfers::wait_recv(const Action& recv) {
  const auto found =
      receiving_.find({tag(recv), peer_of(shape_of_pipeline_, recv)});
  BRIGADE_ASSERT(
      found != receiving_.end(), "{} was not posted", describe(recv));
  named(recv, [&] { found->second.work->wait(); });
  torch::Tensor tensor = std::move(found->second.tensor);
  receiving_.erase(found);
  return tensor;
}

std::optional<Action> StageTransfers::due_send() const {
  if (sending_.empty() || sending_.front().computations_since < kSendSlack)
    return std::nullopt;
  return sending_.front().action;
}

void StageTransfers::wait_oldest_send() {
  const Sending oldest = std::move(sending_.front());
  sending_.pop_front();
  named(oldest.action, [&] { oldest.work->wait(); });
}

void StageTransfers::computation_done() {
  for (Sending& one : sending_)
    ++one.computations_since;
}

void StageTransfers::wait_sends() {
  while (!sending_.empty())
    wait_oldest_send();
}

}  // namespace brigade

#include "brigade/comm/self_communicator.h"

#include <fmt/format.h>

#include <map>

#include "brigade/base/error.h"
#include "brigade/comm/any_tensor.h"

namespace brigade {
namespace {

class SelfCommunicator : public Communicator {
 public:
  explicit SelfCommunicator(CommunicatorOptions options)
      : Communicator(0, 1, std::move(options)) {}

 private:
  using Record = const CollectiveRecord&;

  WorkPtr do_all_reduce(torch::Tensor tensor, ReduceOp, Record) override {
    return make_queued_work(tensor.device());
  }
  WorkPtr do_reduce_scatter(torch::Tensor out, torch::Tensor in, Record)
      override {
    return copied(out, in);
  }
  WorkPtr do_all_gather(torch::Tensor out, torch::Tensor in, Record) override {
    return copied(out, in);
  }
  WorkPtr do_broadcast(torch::Tensor tensor, int, Record) override {
    return make_queued_work(tensor.device());
  }
  WorkPtr do_all_to_all(
      torch::Tensor out,
      torch::Tensor in,
      const RowSplits& /* one, of all rows */,
      Record) override {
    return copied(out, in);
  }
  // A message to oneself is kept until it is received.
  WorkPtr do_send(torch::Tensor tensor, int, int tag, Record) override {
    mailbox_[tag].push_back(tensor.clone());
    return make_queued_work(tensor.device());
  }
  WorkPtr do_recv(torch::Tensor tensor, int, int tag, Record record) override {
    auto& letters = mailbox_[tag];
    const torch::Tensor letter =
        letters.empty() ? torch::Tensor() : letters.front();
    if (!letter.defined() || letter.numel() != tensor.numel() ||
        letter.scalar_type() != tensor.scalar_type()) {
      throw UsageError(fmt::format(
          "[comm] {} in group '{}' of one rank, which has sent itself {} with "
          "tag {}",
          to_string(record),
          name(),
          letter.defined() ? fmt::format(
                                 "{} x {}",
                                 letter.numel(),
                                 c10::toString(letter.scalar_type()))
                           : "nothing",
          tag));
    }
    const AnyTensorMode any_tensor;
    tensor.view({-1}).copy_(letter.view({-1}));
    letters.pop_front();
    return make_queued_work(tensor.device());
  }
  WorkPtr do_barrier(Record) override { return make_completed_work(); }

  static WorkPtr copied(torch::Tensor& out, const torch::Tensor& in) {
    const AnyTensorMode any_tensor;
    if (!out.is_alias_of(in) || out.storage_offset() != in.storage_offset())
      out.view({-1}).copy_(in.reshape({-1}));
    return make_queued_work(out.device());
  }

  std::map<int, std::deque<torch::Tensor>> mailbox_;  // by tag
};

}  // namespace

CommunicatorPtr make_self_communicator(CommunicatorOptions options) {
  return std::make_shared<SelfCommunicator>(std::move(options));
}

}  // namespace brigade

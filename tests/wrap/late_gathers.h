// A communicator whose all-gathers take place when they are waited for, not
// before: who reads gathered memory without waiting reads what was there.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/communicator.h"

namespace brigade::testing {

class LateGathers : public Communicator {
 public:
  explicit LateGathers(CommunicatorPtr inner)
      : Communicator(inner->rank(), inner->size(), inner->options()),
        inner_(std::move(inner)),
        done_(std::make_shared<Done>()) {}

  // Where the gathers that were waited for put what they gathered, in the order
  // of the waits.
  const std::vector<torch::Tensor>& waited() const { return done_->outputs; }
  void forget() { done_->outputs.clear(); }
  // The next wait throws CommError.
  void fail_next() { done_->fails = true; }

 private:
  using Record = const CollectiveRecord&;
  struct Done {
    std::vector<torch::Tensor> outputs;
    bool fails = false;
  };

  class Late : public Work {
   public:
    Late(
        CommunicatorPtr inner,
        std::shared_ptr<Done> done,
        torch::Tensor output,
        torch::Tensor input)
        : inner_(std::move(inner)),
          done_(std::move(done)),
          output_(std::move(output)),
          input_(std::move(input)) {}
    void wait() override {
      if (!output_.defined())
        return;
      inner_->all_gather(output_, input_)->wait();
      done_->outputs.push_back(std::exchange(output_, {}));
      if (std::exchange(done_->fails, false))
        throw CommError("[comm] a gather that fails");
    }
    bool is_completed() override { return !output_.defined(); }
    int64_t finished_ns() override { return 0; }

   private:
    CommunicatorPtr inner_;
    std::shared_ptr<Done> done_;
    torch::Tensor output_, input_;
  };

  WorkPtr do_all_gather(torch::Tensor output, torch::Tensor input, Record)
      override {
    return std::make_shared<Late>(inner_, done_, output, input);
  }
  WorkPtr do_all_reduce(torch::Tensor tensor, ReduceOp op, Record) override {
    return inner_->all_reduce(tensor, op);
  }
  WorkPtr do_reduce_scatter(torch::Tensor output, torch::Tensor input, Record)
      override {
    return inner_->reduce_scatter(output, input);
  }
  WorkPtr do_broadcast(torch::Tensor tensor, int root, Record) override {
    return inner_->broadcast(tensor, root);
  }
  WorkPtr do_all_to_all(
      torch::Tensor output,
      torch::Tensor input,
      const RowSplits& splits,
      Record) override {
    return inner_->all_to_all_single(output, input, splits);
  }
  WorkPtr do_send(torch::Tensor tensor, int destination, int tag, Record)
      override {
    return inner_->send(tensor, destination, tag);
  }
  WorkPtr do_recv(torch::Tensor tensor, int source, int tag, Record) override {
    return inner_->recv(tensor, source, tag);
  }
  WorkPtr do_barrier(Record) override {
    inner_->barrier();
    return make_completed_work();
  }
  void gather_signatures(
      const torch::Tensor& all,
      const torch::Tensor& mine,
      Record) override {
    torch::Tensor(all).copy_(mine.expand_as(all));
  }

  CommunicatorPtr inner_;
  std::shared_ptr<Done> done_;
};

}  // namespace brigade::testing

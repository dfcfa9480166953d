#include "brigade/data_parallel/staged_work.h"

#include <exception>
#include <optional>
#include <utility>

namespace brigade {

class StagedReductions::StagedWork : public Work {
 public:
  StagedWork(ReductionStages stages, std::shared_ptr<Queue> queue)
      : stages_(std::move(stages)), queue_(std::move(queue)) {}

  void wait() override {
    while (!second_ && !failure_) {
      const auto next = queue_->front().lock();
      queue_->pop_front();
      if (next)
        next->launch_second();
    }
    if (failure_)
      std::rethrow_exception(failure_);
    second_->wait();
    if (const auto last = std::exchange(stages_.last, nullptr)) {
      const torch::NoGradGuard no_grad;
      last();
    }
  }
  bool is_completed() override { return second_ && second_->is_completed(); }
  int64_t finished_ns() override {
    return second_ ? second_->finished_ns() : 0;
  }
  std::optional<int64_t> reduced_bytes() override {
    return stages_.reduced_bytes;
  }

 private:
  // A failure is kept for the thread that waits for this Work.
  void launch_second() {
    try {
      stages_.first->wait();
      const torch::NoGradGuard no_grad;
      second_ = stages_.second();
    } catch (const std::exception&) {
      failure_ = std::current_exception();
    }
    stages_.first.reset();
    stages_.second = nullptr;
  }

  ReductionStages stages_;
  std::shared_ptr<Queue> queue_;
  WorkPtr second_;
  std::exception_ptr failure_;
};

WorkPtr StagedReductions::add(
    const Communicator& communicator,
    ReductionStages stages) {
  std::shared_ptr<Queue> queue;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(
        queues_, [](const auto& item) { return item.second.expired(); });
    auto& known = queues_[&communicator];
    queue = known.lock();
    if (!queue)
      known = queue = std::make_shared<Queue>();
  }
  auto work = std::make_shared<StagedWork>(std::move(stages), queue);
  queue->push_back(work);
  return work;
}

}  // namespace brigade

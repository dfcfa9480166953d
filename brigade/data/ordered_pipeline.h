// One producer, several workers, one consumer that sees the results in the
// order of production. What is under way at a time is bounded by its cost.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace brigade {

template <typename Input, typename Output>
struct OrderedStages {
  int num_workers = 1;
  // Produced and not yet consumed inputs may cost so much together; one input
  // that costs more goes through alone.
  uint64_t max_cost = 0;
  std::function<bool(Input&)> produce;  // false at the end; on its own thread
  std::function<uint64_t(const Input&)> cost;
  std::function<Output(Input)> transform;  // on the workers' threads
  std::function<void(Output)> consume;     // on the thread that calls run()
};

// One run of the stages.
template <typename Input, typename Output>
class OrderedPipeline {
 public:
  explicit OrderedPipeline(OrderedStages<Input, Output> stages)
      : stages_(std::move(stages)) {}

  // Returns when everything was consumed. The first failure in the order of
  // production stops everything and is thrown here; what came before it has
  // been consumed. Call once.
  void run();

 private:
  struct Slot {
    std::optional<Input> input;  // taken by a worker
    std::optional<Output> output;
    std::exception_ptr exception;
    uint64_t cost = 0;
    bool is_done = false;
  };
  using SlotPointer = std::shared_ptr<Slot>;

  void run_producer();
  void run_worker();
  void run_consumer();

  OrderedStages<Input, Output> stages_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<SlotPointer> waiting_;  // for a worker
  std::deque<SlotPointer> ordered_;  // for the consumer
  uint64_t cost_under_way_ = 0;
  bool is_produced_ = false;  // no more will come
  bool is_stopped_ = false;
};

template <typename Input, typename Output>
void run_ordered(OrderedStages<Input, Output> stages) {
  OrderedPipeline<Input, Output>(std::move(stages)).run();
}

template <typename Input, typename Output>
void OrderedPipeline<Input, Output>::run() {
  std::vector<std::thread> threads;
  const auto stop = [&] {
    {
      const std::lock_guard lock(mutex_);
      is_stopped_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads)
      thread.join();
  };
  try {
    threads.emplace_back([this] { run_producer(); });
    for (int i = 0; i < stages_.num_workers; ++i)
      threads.emplace_back([this] { run_worker(); });
    run_consumer();
  } catch (...) {
    stop();
    throw;
  }
  stop();
}

template <typename Input, typename Output>
void OrderedPipeline<Input, Output>::run_producer() {
  while (true) {
    auto slot = std::make_shared<Slot>();
    bool is_last = false;
    try {
      slot->input.emplace();
      is_last = !stages_.produce(*slot->input);
      if (!is_last)
        slot->cost = stages_.cost(*slot->input);
    } catch (...) {
      slot->exception = std::current_exception();
      slot->is_done = true;
      is_last = true;
    }
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        return is_stopped_ || cost_under_way_ == 0 ||
               cost_under_way_ + slot->cost <= stages_.max_cost;
      });
      if (is_stopped_)
        return;
      if (slot->exception || !is_last) {
        cost_under_way_ += slot->cost;
        ordered_.push_back(slot);
        if (!slot->exception)
          waiting_.push_back(slot);
      }
      is_produced_ = is_last;
    }
    changed_.notify_all();
    if (is_last)
      return;
  }
}

template <typename Input, typename Output>
void OrderedPipeline<Input, Output>::run_worker() {
  while (true) {
    SlotPointer slot;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        return is_stopped_ || !waiting_.empty() || is_produced_;
      });
      if (is_stopped_ || waiting_.empty())
        return;
      slot = waiting_.front();
      waiting_.pop_front();
    }
    try {
      Input input = std::move(*slot->input);
      slot->input.reset();
      slot->output = stages_.transform(std::move(input));
    } catch (...) {
      slot->exception = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      slot->is_done = true;
    }
    changed_.notify_all();
  }
}

template <typename Input, typename Output>
void OrderedPipeline<Input, Output>::run_consumer() {
  while (true) {
    SlotPointer slot;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        return ordered_.empty() ? is_produced_ : ordered_.front()->is_done;
      });
      if (ordered_.empty())
        return;
      slot = ordered_.front();
      ordered_.pop_front();
    }
    if (slot->exception)
      std::rethrow_exception(slot->exception);
    stages_.consume(std::move(*slot->output));
    slot->output.reset();
    {
      const std::lock_guard lock(mutex_);
      cost_under_way_ -= slot->cost;
    }
    changed_.notify_all();
  }
}

}  // namespace brigade

#include "brigade/wrap/gather_observer.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <memory>

#include "brigade/data_parallel/op_inputs.h"
#include "brigade/data_parallel/shared_memory.h"

namespace brigade {
namespace {

// The innermost forward of this thread.
GatherObserver*& current_observer() {
  thread_local GatherObserver* observer = nullptr;
  return observer;
}

std::unique_ptr<at::ObserverContext> before_observed_op(
    const at::RecordFunction& op) {
  GatherObserver* observer = current_observer();
  if (observer == nullptr)
    return nullptr;
  // Waiting may run operations too.
  const at::DisableRecordFunctionGuard unobserved;
  try {
    for (const c10::IValue& input : op.inputs())
      visit_op_input(input, [observer](const torch::Tensor& tensor) {
        observer->before_read(tensor);
      });
  } catch (...) {
    // RecordFunction would swallow the exception.
    observer->fail_later(std::current_exception());
  }
  return nullptr;
}

}  // namespace

void GatherObserver::Range::find(const torch::Tensor& tensor) {
  begin = end = 0;
  const MemorySpan span(tensor);
  if (span.storage == nullptr)
    return;
  // Not data_ptr(), which counts as a write for a lazily copied tensor.
  const auto memory = reinterpret_cast<uintptr_t>(
      tensor.storage().unsafeGetStorageImpl()->data());
  begin = memory + static_cast<uintptr_t>(span.begin);
  end = memory + static_cast<uintptr_t>(span.end);
}

GatherObserver::GatherObserver(GradSync& sync) : sync_(&sync) {
  for (const Param& param : sync.params())
    ranges_.push_back({.param = &param});
}

void GatherObserver::find_ranges() {
  for (Range& range : ranges_)
    range.find(range.param->tensor);
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) {
    return a.begin < b.begin;
  });
}

void GatherObserver::before_read(const torch::Tensor& tensor) {
  Range read;
  read.find(tensor);
  auto range = std::upper_bound(
      ranges_.begin(), ranges_.end(), read, [](const Range& a, const Range& b) {
        return a.begin < b.end;
      });
  for (; range != ranges_.end() && range->begin < read.end; ++range) {
    range->was_read = true;
    sync_->weights().need(*range->param);
  }
}

GatherObserver::InForward::InForward(GatherObserver* observer)
    : observer_(observer) {
  if (observer_ == nullptr)
    return;
  if (const auto failure = std::exchange(observer_->failure_, nullptr))
    std::rethrow_exception(failure);
  GradSync& sync = *observer_->sync_;
  if (!at::isRecordFunctionEnabled()) {  // nobody would see what is read
    sync.weights().need_all();
    observer_ = nullptr;
    return;
  }
  const bool learns = !std::exchange(observer_->has_seen_a_forward_, true);
  if (!learns && !sync.weights().are_under_way()) {
    observer_ = nullptr;
    return;
  }
  // In the first forward nothing is known yet, so this waits for all weights.
  for (const Range& range : observer_->ranges_) {
    if (!range.was_read)
      sync.weights().need(*range.param);
  }
  observer_->find_ranges();
  callback_ =
      at::addThreadLocalCallback(at::RecordFunctionCallback(before_observed_op)
                                     .needsInputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
  outer_ = std::exchange(current_observer(), observer_);
}

GatherObserver::InForward::~InForward() {
  if (observer_ == nullptr)
    return;
  current_observer() = outer_;
  at::removeCallback(callback_);
}

void GatherObserver::InForward::end() {
  if (observer_ == nullptr)
    return;
  if (const auto failure = std::exchange(observer_->failure_, nullptr))
    std::rethrow_exception(failure);
  observer_->sync_->weights().need_all();
}

}  // namespace brigade

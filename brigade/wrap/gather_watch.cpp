#include "brigade/wrap/gather_watch.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <memory>

#include "brigade/data_parallel/op_inputs.h"
#include "brigade/data_parallel/shared_memory.h"

namespace brigade {
namespace {

// The innermost forward of this thread.
GatherWatch*& current_watch() {
  thread_local GatherWatch* watch = nullptr;
  return watch;
}

std::unique_ptr<at::ObserverContext> before_observed_op(
    const at::RecordFunction& op) {
  GatherWatch* watch = current_watch();
  if (watch == nullptr)
    return nullptr;
  // Waiting may run operations too.
  const at::DisableRecordFunctionGuard unobserved;
  try {
    for (const c10::IValue& input : op.inputs())
      visit_op_input(input, [watch](const torch::Tensor& tensor) {
        watch->before_read(tensor);
      });
  } catch (...) {
    // RecordFunction would swallow the exception.
    watch->fail_later(std::current_exception());
  }
  return nullptr;
}

}  // namespace

void GatherWatch::Range::find(const torch::Tensor& tensor) {
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

GatherWatch::GatherWatch(GradSync& sync) : sync_(&sync) {
  for (int i = 0; i < static_cast<int>(sync.params().size()); ++i)
    ranges_.push_back({.param = i});
}

void GatherWatch::find_ranges() {
  for (Range& range : ranges_)
    range.find(sync_->params()[static_cast<size_t>(range.param)].tensor);
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) {
    return a.begin < b.begin;
  });
}

void GatherWatch::wait_for_unseen() {
  for (const Range& range : ranges_) {
    if (!range.was_read)
      sync_->wait_for_weight(range.param);
  }
}

void GatherWatch::before_read(const torch::Tensor& tensor) {
  Range read;
  read.find(tensor);
  auto range = std::upper_bound(
      ranges_.begin(), ranges_.end(), read, [](const Range& a, const Range& b) {
        return a.begin < b.end;
      });
  for (; range != ranges_.end() && range->begin < read.end; ++range) {
    range->was_read = true;
    sync_->wait_for_weight(range->param);
  }
}

GatherWatch::InForward::InForward(GatherWatch* watch) : watch_(watch) {
  if (watch_ == nullptr)
    return;
  if (const auto failure = std::exchange(watch_->failure_, nullptr))
    std::rethrow_exception(failure);
  GradSync& sync = *watch_->sync_;
  if (!at::isRecordFunctionEnabled()) {  // nobody would see what is read
    sync.wait_for_weights();
    watch_ = nullptr;
    return;
  }
  const bool learns = !std::exchange(watch_->has_seen_a_forward_, true);
  if (!learns && !sync.is_gathering()) {
    watch_ = nullptr;
    return;
  }
  // In the first forward nothing is known yet, so this waits for all weights.
  watch_->wait_for_unseen();
  watch_->find_ranges();
  observer_ =
      at::addThreadLocalCallback(at::RecordFunctionCallback(before_observed_op)
                                     .needsInputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
  outer_ = std::exchange(current_watch(), watch_);
}

GatherWatch::InForward::~InForward() {
  if (watch_ == nullptr)
    return;
  current_watch() = outer_;
  at::removeCallback(observer_);
}

void GatherWatch::InForward::end() {
  if (watch_ == nullptr)
    return;
  if (const auto failure = std::exchange(watch_->failure_, nullptr))
    std::rethrow_exception(failure);
  watch_->sync_->wait_for_weights();
}

}  // namespace brigade

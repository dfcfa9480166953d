#include "brigade/data_parallel/write_observer.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string_view>
#include <tuple>
#include <utility>

#include "brigade/data_parallel/op_inputs.h"

namespace brigade {
namespace {

// The observers of the process that are between begin() and end(); ranks that
// are threads have one each.
struct ActiveObservers {
  std::mutex mutex;
  std::vector<WriteObserver*> observers;
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;

  static ActiveObservers& instance() {
    static ActiveObservers active;
    return active;
  }

  // Precondition of both: the mutex is held.
  void add(WriteObserver* observer, at::RecordFunctionCallback callback) {
    observers.push_back(observer);
    if (observers.size() == 1)
      handle = at::addGlobalCallback(callback);
  }
  void remove(const WriteObserver* observer) {
    const auto found = std::find(observers.begin(), observers.end(), observer);
    if (found == observers.end())
      return;
    observers.erase(found);
    if (observers.empty())
      at::removeCallback(handle);
  }
};

// The argument that an operation writes to: the first if it works in place, the
// last if its overload is named "out"; null if none.
const c10::IValue* written_input(const at::RecordFunction& op) {
  const auto inputs = op.inputs();
  const std::string_view name(op.name());
  // embedding_renorm_ is not a step: an embedding's forward calls it for
  // max_norm.
  if (name.empty() || inputs.empty() || name == "aten::embedding_renorm_")
    return nullptr;
  if (name.back() == '_')
    return &inputs[0];
  const auto full_name = op.operator_name();
  const bool has_out =
      full_name && full_name->overload_name.find("out") != std::string::npos;
  return has_out ? &inputs[inputs.size() - 1] : nullptr;
}

std::unique_ptr<at::ObserverContext> before_write(
    const at::RecordFunction& op) {
  const c10::IValue* const written = written_input(op);
  if (written == nullptr)
    return nullptr;
  ActiveObservers& active = ActiveObservers::instance();
  const std::lock_guard lock(active.mutex);
  visit_op_input(*written, [&](const torch::Tensor& tensor) {
    const MemorySpan memory(tensor);
    // Observers that have seen enough are removed.
    for (size_t i = active.observers.size(); i-- > 0;) {
      WriteObserver* const observer = active.observers[i];
      observer->note_write(memory);
      if (observer->has_seen_weights())
        active.remove(observer);
    }
  });
  return nullptr;
}

std::vector<MemorySpan> spans_of(const std::vector<torch::Tensor>& tensors) {
  std::vector<MemorySpan> all(tensors.begin(), tensors.end());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::tie(a.storage, a.begin) < std::tie(b.storage, b.begin);
  });
  std::vector<MemorySpan> spans;
  for (const MemorySpan& span : all) {
    if (!spans.empty() && spans.back().overlaps(span))
      spans.back().end = std::max(spans.back().end, span.end);
    else
      spans.push_back(span);
  }
  return spans;
}

bool overlap(const std::vector<MemorySpan>& spans, const MemorySpan& span) {
  const auto found = std::partition_point(
      spans.begin(), spans.end(), [&](const MemorySpan& each) {
        return std::tie(each.storage, each.end) <=
               std::tie(span.storage, span.begin);
      });
  return found != spans.end() && found->overlaps(span);
}

}  // namespace

void WriteObserver::begin(
    const std::vector<torch::Tensor>& gradients,
    const std::vector<torch::Tensor>& weights,
    std::function<void()> on_step) {
  end();
  gradients_ = spans_of(gradients);
  weights_ = spans_of(weights);
  on_step_ = std::move(on_step);
  ActiveObservers& active = ActiveObservers::instance();
  const std::lock_guard lock(active.mutex);
  is_observing_ = true;
  active.add(
      this,
      at::RecordFunctionCallback(before_write)
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
}

void WriteObserver::end() {
  ActiveObservers& active = ActiveObservers::instance();
  const std::lock_guard lock(active.mutex);
  active.remove(this);
  is_observing_ = false;
  seen_ = Seen::kNothing;
}

void WriteObserver::note_step() {
  if (is_observing_)
    on_step_();
  end();
  seen_ = Seen::kStep;
}

void WriteObserver::note_write(const MemorySpan& written) {
  if (overlap(weights_, written)) {
    on_step_();
    seen_ = Seen::kWeights;
    is_observing_ = false;
  } else if (overlap(gradients_, written) && seen_ == Seen::kNothing) {
    seen_ = Seen::kGradients;
  }
}

}  // namespace brigade

#include "brigade/wrap/weight_observer.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/data_parallel/op_inputs.h"

namespace brigade {
namespace {

struct ObservedUnit {
  ShardedWeights* weights = nullptr;
  int unit = 0;
};

// The storages of all sharded weights of the process: ranks that are threads
// each have some, and autograd may have threads of its own.
struct ObservedStorages {
  std::mutex mutex;
  std::unordered_map<const void*, ObservedUnit> units;
  int observers = 0;
  // Observes all threads; removed with the last observer.
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;

  static ObservedStorages& instance() {
    static ObservedStorages storages;
    return storages;
  }
};

// The number of nodes of backward that this thread is in.
int& backward_depth() {
  thread_local int depth = 0;
  return depth;
}

using UsedUnits = std::vector<ObservedUnit>;

void add_unit_of(const torch::Tensor& tensor, UsedUnits& used) {
  const auto& all = ObservedStorages::instance().units;
  const auto found = all.find(tensor.storage().unsafeGetStorageImpl());
  if (found == all.end())
    return;
  const bool is_known = std::any_of(used.begin(), used.end(), [&](auto& each) {
    return each.weights == found->second.weights &&
           each.unit == found->second.unit;
  });
  if (!is_known)
    used.push_back(found->second);
}

// Gathers the units of one module that the operation reads.
void use(ShardedWeights& weights, const UsedUnits& used) {
  const bool may_gather = weights.is_in_pass() || backward_depth() > 0;
  std::vector<int> units;
  for (const ObservedUnit& each : used) {
    if (each.weights == &weights)
      units.push_back(each.unit);
  }
  try {
    if (!may_gather) {
      for (const int unit : units)
        weights.fill_with_nan(unit);
    } else if (units.size() != 1 || !weights.is_current(units.front())) {
      weights.use_all(units);
    }
  } catch (...) {
    // RecordFunction would swallow the exception, and the operation would read
    // missing memory.
    weights.fail_later(std::current_exception());
    for (const int unit : units)
      weights.fill_with_nan(unit);
  }
}

std::unique_ptr<at::ObserverContext> before_op(const at::RecordFunction& op) {
  if (op.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    ++backward_depth();
    return nullptr;
  }
  UsedUnits used;
  {
    const std::lock_guard lock(ObservedStorages::instance().mutex);
    for (const c10::IValue& input : op.inputs())
      visit_op_input(
          input, [&](const torch::Tensor& each) { add_unit_of(each, used); });
  }
  std::vector<ShardedWeights*> modules;
  for (const ObservedUnit& each : used) {
    if (std::find(modules.begin(), modules.end(), each.weights) ==
        modules.end()) {
      modules.push_back(each.weights);
      use(*each.weights, used);
    }
  }
  return nullptr;
}

void after_op(const at::RecordFunction& op, at::ObserverContext* /*context*/) {
  if (op.scope() == at::RecordScope::BACKWARD_FUNCTION)
    --backward_depth();
}

void throw_if_unobserved(const char* pass) {
  if (at::isRecordFunctionEnabled())
    return;
  throw UsageError(fmt::format(
      "[data_parallel] a {} with sharding = parameters while libtorch's record "
      "functions are switched off (at::DisableRecordFunctionGuard, "
      "RecordFunctionGuard(false)): they tell which weights to gather; leave "
      "them on in forward and backward",
      pass));
}

}  // namespace

WeightObserver::WeightObserver(ShardedWeights& weights) : weights_(&weights) {
  ObservedStorages& storages = ObservedStorages::instance();
  const std::lock_guard lock(storages.mutex);
  for (const auto& [storage, unit] : weights.storages())
    storages.units[storage] = {&weights, unit};
  if (storages.observers++ == 0) {
    storages.handle =
        at::addGlobalCallback(at::RecordFunctionCallback(before_op, after_op)
                                  .needsInputs(true)
                                  .scopes(
                                      {at::RecordScope::FUNCTION,
                                       at::RecordScope::BACKWARD_FUNCTION}));
  }
}

WeightObserver::~WeightObserver() {
  ObservedStorages& storages = ObservedStorages::instance();
  const std::lock_guard lock(storages.mutex);
  for (const auto& [storage, unit] : weights_->storages())
    storages.units.erase(storage);
  if (--storages.observers == 0)
    at::removeCallback(storages.handle);
}

WeightObserver::InForward::InForward(WeightObserver& observer)
    : weights_(observer.weights_) {
  throw_if_unobserved("forward");
  weights_->throw_if_failed();
  weights_->throw_if_written();
  weights_->begin_pass();
}

WeightObserver::InForward::~InForward() {
  if (weights_ != nullptr)
    weights_->abandon();
}

void WeightObserver::InForward::end() {
  weights_->throw_if_failed();
  if (!torch::GradMode::is_enabled())
    weights_->end_pass();
  weights_ = nullptr;
}

void WeightObserver::observe_backward(const torch::Tensor& output) const {
  if (output.defined() && output.requires_grad() && !output.is_leaf())
    output.register_hook(
        [](const torch::Tensor&) { throw_if_unobserved("backward"); });
}

FullWeights::FullWeights(GradSync& sync) : sync_(&sync) {
  sync.weights().need_all();
  ShardedWeights* weights = sync.weights().units();
  if (weights == nullptr)
    return;
  version_ = weights->version();
  int held = 0;
  try {
    for (; held < weights->units(); ++held)
      sync.weights().hold(held);
  } catch (...) {
    let_go(held);
    throw;
  }
}

FullWeights::~FullWeights() {
  ShardedWeights* weights = sync_->weights().units();
  if (weights == nullptr)
    return;
  try {
    keep();
    if (!weights->is_held())  // by one around this one
      sync_->gather_weights();
  } catch (...) {
    weights->fail_later(std::current_exception());
  }
}

void FullWeights::let_go(int units) {
  for (int unit = 0; unit < units; ++unit)
    sync_->weights().let_go(unit);
}

void FullWeights::keep() {
  ShardedWeights* weights = sync_->weights().units();
  if (weights->version() != version_) {
    weights->accept_writes();
    let_go(weights->units());
    throw UsageError(
        "[data_parallel] an optimizer stepped this rank's part of the weights "
        "while a brigade::FullWeights lived, whose values are older: end it "
        "before the step");
  }
  const torch::NoGradGuard no_grad;
  for (const Param& each : weights->params()) {
    torch::Tensor param = each.tensor;
    const torch::Tensor& view = each.flat_weight;
    // The next step reports other shapes and dtypes.
    if (is_same_memory(param, view) || param.sizes() != view.sizes() ||
        param.scalar_type() != view.scalar_type())
      continue;
    view.copy_(param.detach());
    param.set_data(view);
  }
  bool is_any_new = false;
  for (int unit = 0; unit < weights->units(); ++unit)
    is_any_new = weights->keep_changes(unit) || is_any_new;
  let_go(weights->units());
  weights->accept_writes();
  if (is_any_new)
    ++sync_->memory().flat_memory()->weights_version;
}

}  // namespace brigade

#include "brigade/data_parallel/grad_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/ops/libtorch_versions.h"
#include "brigade/ops/nested_backward.h"

namespace brigade {
namespace {

using torch::autograd::variable_list;
using WeakNodePtr = std::conditional_t<
    std::is_same_v<ops::NodePtr, std::shared_ptr<torch::autograd::Node>>,
    std::weak_ptr<torch::autograd::Node>,
    c10::weak_intrusive_ptr<torch::autograd::Node>>;

class BeforeHook : public torch::autograd::FunctionPreHook {
 public:
  explicit BeforeHook(std::function<void(Arrival)> before)
      : before_(std::move(before)) {}

  variable_list operator()(const variable_list& gradients) override {
    before_(gradients[0].defined() ? Arrival::kGradient : Arrival::kNothing);
    return gradients;
  }

 private:
  std::function<void(Arrival)> before_;
};

class AfterHook : public torch::autograd::FunctionPostHook {
 public:
  explicit AfterHook(std::function<void()> after) : after_(std::move(after)) {}

  variable_list operator()(
      const variable_list& outputs,
      const variable_list& /*inputs*/) override {
    after_();
    return outputs;
  }

 private:
  std::function<void()> after_;
};

// Whether a leaf's tensor hooks run before the engine looks for its
// accumulator's own (libtorch 2), and not inside the accumulator.
template <typename NodeType>
constexpr bool runs_tensor_hooks_first() {
  return requires(NodeType & node) {
    node.tensor_pre_hooks();
  };
}

// A hook that does nothing, which autograd keeps with the tensor.
class OwnerMark : public torch::autograd::FunctionPreHook {
 public:
  explicit OwnerMark(std::shared_ptr<const FlatMemory> owner)
      : owner_(std::move(owner)) {}

  variable_list operator()(const variable_list& gradients) override {
    return gradients;
  }
  const std::shared_ptr<const FlatMemory>& owner() const { return owner_; }

 private:
  std::shared_ptr<const FlatMemory> owner_;
};

using Capture = torch::autograd::GraphTask::ExecInfo::Capture;

class OnCapture : public Capture::GradCaptureHook {
 public:
  explicit OnCapture(std::function<void(const torch::Tensor&)> on_gradient)
      : on_gradient_(std::move(on_gradient)) {}

  torch::Tensor operator()(const torch::Tensor& gradient) override {
    on_gradient_(gradient);
    return gradient;
  }

 private:
  std::function<void(const torch::Tensor&)> on_gradient_;
};

// The member has another name in libtorch 2.
template <typename AnyCapture>
void add_hook(
    AnyCapture& capture,
    std::unique_ptr<Capture::GradCaptureHook> hook) {
  if constexpr (requires { capture.hooks_; })
    capture.hooks_.push_back(std::move(hook));
  else
    capture.DO_NOT_USE_DEPRECATED_register_capture_hook(std::move(hook));
}

}  // namespace

// A parameter and its hooks. Two hooks are on autograd's accumulator, which
// runs only for gradients that are added to .grad; the third is on the tensor,
// where it runs for torch::autograd::grad() too in libtorch 2, and notices that
// torch::load() has led to a new accumulator.
struct GradHooks::Attached {
  torch::Tensor param;
  int index = 0;
  // Autograd itself holds it weakly: without this it would be replaced by a new
  // one, and our hook lost.
  ops::NodePtr accumulator;
  const torch::autograd::FunctionPreHook* before = nullptr;
  uintptr_t after_key = 0;
  unsigned tensor_key = 0;
  // Whether this backward's after() is called by its end, because its graph
  // has an accumulator without our hook.
  bool is_owed = false;

  bool is_stale() const {
    return torch::autograd::impl::try_get_grad_accumulator(param) !=
           accumulator;
  }
};

GradHooks::GradHooks(std::span<const Param> params, Callbacks callbacks)
    : callbacks_(std::move(callbacks)) {
  for (size_t i = 0; i < params.size(); ++i) {
    Attached& attached = attached_.emplace_back();
    attached.param = params[i].tensor;
    attached.index = static_cast<int>(i);
    attach(attached);
    attached.tensor_key =
        attached.param.register_hook([this, &attached](const torch::Tensor&) {
          find_new_accumulators(attached);
        });
  }
}

GradHooks::~GradHooks() {
  for (Attached& attached : attached_) {
    detach(attached);
    attached.param.remove_hook(attached.tensor_key);
  }
}

void GradHooks::attach(Attached& attached) {
  attached.accumulator =
      torch::autograd::impl::grad_accumulator(attached.param);
  auto before = std::make_unique<BeforeHook>(
      [this, param = attached.index](Arrival arrival) {
        callbacks_.before(param, arrival);
      });
  attached.before = before.get();
  attached.accumulator->add_pre_hook(std::move(before));
  attached.after_key = attached.accumulator->add_post_hook(
      std::make_unique<AfterHook>([this, &attached] { after(attached); }));
}

void GradHooks::detach(Attached& attached) {
  auto& hooks = attached.accumulator->pre_hooks();
  hooks.erase(
      std::remove_if(
          hooks.begin(),
          hooks.end(),
          [&](const auto& hook) { return hook.get() == attached.before; }),
      hooks.end());
  attached.accumulator->del_post_hook(attached.after_key);
}

void GradHooks::find_new_accumulators(Attached& attached) {
  if (!attached.is_stale())
    return;
  for (Attached& other : attached_) {
    if (!other.is_stale())
      continue;
    detach(other);
    attach(other);
  }
  if (runs_tensor_hooks_first<torch::autograd::Node>())
    return;
  // The engine has looked for this node's hooks already, so that the end of
  // this backward calls after(). For other nodes the new hook is in time.
  callbacks_.before(attached.index, Arrival::kGradient);
  attached.is_owed = true;
  at_end_of_backward([this, &attached] {
    if (attached.is_owed)
      after(attached);
  });
}

void GradHooks::after(Attached& attached) {
  attached.is_owed = false;
  callbacks_.after(attached.index);
}

ops::NodePtr stand_in_for_data(torch::Tensor& leaf, const torch::Tensor& data) {
  if (!leaf.requires_grad()) {
    leaf.set_data(data);
    return nullptr;
  }
  // set_data() drops the accumulator of a leaf whose dtype changes; the engine
  // casts gradients to the dtype that the accumulator was made with.
  auto accumulator = torch::autograd::impl::grad_accumulator(leaf);
  leaf.set_data(data);
  torch::autograd::impl::set_grad_accumulator(leaf, WeakNodePtr(accumulator));
  return accumulator;
}

bool has_grad_hooks(const torch::Tensor& param) {
  const auto accumulator = torch::autograd::impl::grad_accumulator(param);
  const auto& hooks = accumulator->post_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    return dynamic_cast<const AfterHook*>(hook.get()) != nullptr;
  });
}

void set_owner(
    const torch::Tensor& leaf,
    std::shared_ptr<const FlatMemory> owner) {
  torch::autograd::impl::add_hook(
      leaf, std::make_unique<OwnerMark>(std::move(owner)));
}

std::shared_ptr<const FlatMemory> owner_of(const torch::Tensor& tensor) {
  if (torch::autograd::impl::get_autograd_meta(tensor) == nullptr)
    return nullptr;
  for (const auto& hook : torch::autograd::impl::hooks(tensor)) {
    if (const auto* mark = dynamic_cast<const OwnerMark*>(hook.get()))
      return mark->owner();
  }
  return nullptr;
}

void at_end_of_backward(std::function<void()> callback) {
  torch::autograd::Engine::get_default_engine().queue_callback(
      [callback = std::move(callback)] {
        // This was a nested backward: wait for the end of the one around it.
        if (ops::NestedBackward::is_active()) {
          ops::NestedBackward::at_end(
              [callback] { at_end_of_backward(callback); });
        } else {
          callback();
        }
      });
}

void at_captured_gradients(
    const std::function<void(const torch::Tensor&)>& on_gradient) {
  const auto* nodes = torch::autograd::get_current_graph_task_exec_info();
  if (nodes == nullptr)
    return;
  for (const auto& [node, info] : *nodes) {
    if (info.captures_ == nullptr)
      continue;
    for (Capture& capture : *info.captures_)
      add_hook(capture, std::make_unique<OnCapture>(on_gradient));
  }
}

void EndOfBackward::call_once(std::function<void()> callback) {
  if (is_awaited_)
    return;
  is_awaited_ = true;
  const auto waiting = std::make_shared<const bool>(true);
  waiting_ = waiting;
  at_end_of_backward([this, waiting, callback = std::move(callback)] {
    if (waiting_.lock() != waiting || !is_awaited_)
      return;
    is_awaited_ = false;
    callback();
  });
}

void EndOfBackward::throw_if_broken_off() const {
  if (!is_awaited_ || !waiting_.expired())
    return;
  throw UsageError(
      "[data_parallel] the last backward() ended by an exception, with a part "
      "of the step's gradients: call reset() of DataParallel after it, on "
      "every rank, which drops them");
}

}  // namespace brigade

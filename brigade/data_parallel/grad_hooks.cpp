#include "brigade/data_parallel/grad_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

#include "brigade/ops/libtorch_versions.h"
#include "brigade/ops/nested_backward.h"

namespace brigade {
namespace {

using torch::autograd::variable_list;
using WeakNodePtr = std::conditional_t<
    std::is_same_v<ops::NodePtr, std::shared_ptr<torch::autograd::Node>>,
    std::weak_ptr<torch::autograd::Node>,
    c10::weak_intrusive_ptr<torch::autograd::Node>>;

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

}  // namespace

// A parameter and its two hooks. The one before is on the tensor and stays; the
// one after is on autograd's accumulator, which torch::load() makes anew.
struct GradHooks::Attached {
  torch::Tensor param;
  int index = 0;
  // Autograd itself holds it weakly: without this it would be made anew, and
  // our hook with the old one lost.
  ops::NodePtr accumulator;
  uintptr_t after_key = 0;
  unsigned before_key = 0;
  // Whether this backward's after() is called by its end, because its graph
  // has an accumulator without our hook.
  bool is_owed = false;

  bool is_stale() const {
    return torch::autograd::impl::try_get_grad_accumulator(param) !=
           accumulator;
  }
};

GradHooks::GradHooks(
    const std::vector<torch::Tensor>& params,
    Callbacks callbacks)
    : callbacks_(std::move(callbacks)) {
  for (size_t i = 0; i < params.size(); ++i) {
    Attached& attached = attached_.emplace_back();
    attached.param = params[i];
    attached.index = static_cast<int>(i);
    attach_after(attached);
    attached.before_key = attached.param.register_hook(
        [this, &attached](const torch::Tensor&) { before(attached); });
  }
}

GradHooks::~GradHooks() {
  for (Attached& attached : attached_) {
    attached.accumulator->del_post_hook(attached.after_key);
    attached.param.remove_hook(attached.before_key);
  }
}

void GradHooks::attach_after(Attached& attached) {
  attached.accumulator =
      torch::autograd::impl::grad_accumulator(attached.param);
  attached.after_key = attached.accumulator->add_post_hook(
      std::make_unique<AfterHook>([this, &attached] { after(attached); }));
}

void GradHooks::before(Attached& attached) {
  callbacks_.before(attached.index);
  if (!attached.is_stale())
    return;
  // The engine has looked for this node's hooks already, so that the end of
  // this backward calls after(). The others' are in time.
  for (Attached& other : attached_) {
    if (!other.is_stale())
      continue;
    other.accumulator->del_post_hook(other.after_key);
    attach_after(other);
  }
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

void at_end_of_backward(std::function<void()> callback) {
  torch::autograd::Engine::get_default_engine().queue_callback(
      [callback = std::move(callback)] {
        // Of a nested backward: wait on in the one around it.
        if (ops::NestedBackward::is_active()) {
          ops::NestedBackward::at_end(
              [callback] { at_end_of_backward(callback); });
        } else {
          callback();
        }
      });
}

}  // namespace brigade

#include "brigade/data_parallel/grad_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "brigade/ops/nested_backward.h"

namespace brigade {
namespace {

using torch::autograd::variable_list;

class AfterHook : public torch::autograd::FunctionPostHook {
 public:
  AfterHook(std::shared_ptr<const GradHooks::Callbacks> callbacks, int param)
      : callbacks_(std::move(callbacks)), param_(param) {}

  variable_list operator()(
      const variable_list& outputs,
      const variable_list& /*inputs*/) override {
    callbacks_->after(param_);
    return outputs;
  }

 private:
  std::shared_ptr<const GradHooks::Callbacks> callbacks_;
  int param_;
};

}  // namespace

struct GradHooks::Attached {
  torch::Tensor param;
  // Autograd itself holds it weakly: without this it would be made anew, and
  // our hook with the old one lost.
  std::shared_ptr<torch::autograd::Node> accumulator;
  uintptr_t after_key = 0;
  unsigned before_key = 0;
};

GradHooks::GradHooks(
    const std::vector<torch::Tensor>& params,
    Callbacks callbacks)
    : callbacks_(std::make_shared<const Callbacks>(std::move(callbacks))) {
  attached_.reserve(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    const int index = static_cast<int>(i);
    Attached attached;
    attached.param = params[i];
    attached.accumulator = torch::autograd::impl::grad_accumulator(params[i]);
    attached.after_key = attached.accumulator->add_post_hook(
        std::make_unique<AfterHook>(callbacks_, index));
    attached.before_key = attached.param.register_hook(
        [callbacks_of = callbacks_, index](const torch::Tensor&) {
          callbacks_of->before(index);
        });
    attached_.push_back(std::move(attached));
  }
}

GradHooks::~GradHooks() {
  for (Attached& attached : attached_) {
    attached.accumulator->del_post_hook(attached.after_key);
    attached.param.remove_hook(attached.before_key);
  }
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

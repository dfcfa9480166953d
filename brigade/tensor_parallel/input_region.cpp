#include "brigade/tensor_parallel/input_region.h"

#include <utility>
#include <vector>

#include "brigade/base/check.h"
#include "brigade/ops/carried.h"
#include "brigade/ops/once_differentiable.h"

namespace brigade {

using torch::Tensor;

// Between start() and the region's own backward: the collective under way.
//   idle --launch()--> under way --finish()--> idle
struct InputRegion::State {
  TensorParallel parallel;
  Tensor input_grad;  // keeps its memory while the collective reads it
  Tensor result;
  WorkPtr work;  // null: idle

  void launch(const Tensor& gradient) {
    BRIGADE_ASSERT(!work, "an input region's collective was started twice");
    input_grad = gradient;
    if (parallel.tokens == TokenLayout::kReplicated) {
      result = gradient;
      work = parallel.group->all_reduce(result);
    } else {
      std::vector<int64_t> shape = gradient.sizes().vec();
      shape[0] /= parallel.size();
      result = torch::empty(shape, gradient.options());
      work = parallel.group->reduce_scatter(result, gradient);
    }
  }

  Tensor finish() {
    std::exchange(work, nullptr)->wait();
    input_grad = Tensor();
    return std::exchange(result, Tensor());
  }
};

namespace {

struct Enter : ops::OnceDifferentiable<Enter> {
  static constexpr const char* kName = "input_region";

  static Tensor forward(
      AutogradContext* context,
      const Tensor& x,
      const std::shared_ptr<InputRegion::State>& state) {
    ops::carry(context, state);
    if (state->parallel.tokens == TokenLayout::kReplicated)
      return x;
    std::vector<int64_t> shape = x.sizes().vec();
    shape.at(0) *= state->parallel.size();
    Tensor gathered = torch::empty(shape, x.options());
    state->parallel.group->all_gather(gathered, x.contiguous())->wait();
    return gathered;
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    auto& state = *ops::carried<std::shared_ptr<InputRegion::State>>(context);
    if (!gradients[0].defined())
      return {Tensor(), Tensor()};
    // Others may hold a gradient that nobody started: reduce a copy.
    if (!state.work)
      state.launch(gradients[0].clone(torch::MemoryFormat::Contiguous));
    else
      BRIGADE_ASSERT(
          gradients[0].is_alias_of(state.input_grad),
          "the region's result was used by more than what started it");
    return {state.finish(), Tensor()};
  }
};

}  // namespace

InputRegion::InputRegion(TensorParallel parallel)
    : state_(std::make_shared<State>(State{std::move(parallel), {}, {}, {}})) {}

Tensor InputRegion::enter(const Tensor& x) const {
  return Enter::apply(x, state_);
}

void InputRegion::start(const Tensor& input_grad) const {
  state_->launch(input_grad);
}

}  // namespace brigade

#include "brigade/ops/once_differentiable.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <string>

#include "brigade/base/error.h"
#include "brigade/ops/libtorch_versions.h"

namespace brigade::ops {
namespace {

using torch::autograd::variable_list;

class SecondBackward : public torch::autograd::Node {
 public:
  explicit SecondBackward(const char* op) : op_(op) {}

  std::string name() const override { return "SecondBackward"; }

 protected:
  variable_list apply(variable_list&& /*gradients*/) override {
    throw UsageError(fmt::format(
        "[{}] a gradient that was computed with create_graph is "
        "differentiated again (a gradient penalty, a second derivative), "
        "but this operation can be differentiated once only; use torch's "
        "own operations on that path",
        op_));
  }

 private:
  const char* op_;
};

}  // namespace

variable_list differentiable_once(
    const char* op,
    const std::function<variable_list()>& gradients_of) {
  variable_list gradients;
  {
    const torch::NoGradGuard no_grad;
    gradients = gradients_of();
  }
  if (!torch::GradMode::is_enabled())
    return gradients;
  for (torch::Tensor& gradient : gradients) {
    if (!gradient.defined() || !gradient.is_floating_point())
      continue;
    gradient = gradient.detach();
    torch::autograd::create_gradient_edge(
        gradient, make_node<SecondBackward>(op));
  }
  return gradients;
}

}  // namespace brigade::ops

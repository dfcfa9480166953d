#include "brigade/tensor_parallel/mappings.h"

#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "brigade/base/check.h"
#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"

namespace brigade {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kRoom = "tensor_parallel";

void check_divides(const Tensor& x, int64_t dim, const Communicator& group) {
  ops::require(
      x.dim() >= 1 && x.size(dim) % group.size() == 0,
      kRoom,
      "dim {} of {} cannot be cut into {} equal parts for group '{}'",
      dim,
      ops::describe(x),
      group.size(),
      group.name());
}

Tensor same(const Tensor& x, Communicator&) {
  return x;
}

// A tensor of its own: x may be an incoming gradient that others read.
Tensor own(const Tensor& x) {
  return x.clone(torch::MemoryFormat::Contiguous);
}

Tensor all_reduced(const Tensor& x, Communicator& group) {
  Tensor sum = own(x);
  group.all_reduce(sum)->wait();
  return sum;
}

Tensor with_rows(const Tensor& x, int64_t rows) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = rows;
  return torch::empty(shape, x.options());
}

Tensor all_rows(const Tensor& x, Communicator& group) {
  Tensor gathered = with_rows(x, x.size(0) * group.size());
  group.all_gather(gathered, x.contiguous())->wait();
  return gathered;
}

Tensor my_summed_rows(const Tensor& x, Communicator& group) {
  check_divides(x, 0, group);
  Tensor sum = with_rows(x, x.size(0) / group.size());
  group.reduce_scatter(sum, x.contiguous())->wait();
  return sum;
}

Tensor my_columns(const Tensor& x, Communicator& group) {
  check_divides(x, -1, group);
  const int64_t columns = x.size(-1) / group.size();
  return own(x.narrow(-1, group.rank() * columns, columns));
}

Tensor all_columns(const Tensor& x, Communicator& group) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.insert(shape.begin(), group.size());
  const Tensor gathered = torch::empty(shape, x.options());
  group.all_gather(gathered, x.contiguous())->wait();
  // [R, .., n] -> [.., R, n] -> [.., R * n]
  return gathered.movedim(0, -2).flatten(-2);
}

using Map = Tensor (*)(const Tensor&, Communicator&);

struct Transposed {
  CommunicatorPtr group;
  Map forward;
  Map backward;
};

// The gradient of a region is the transposed region of the incoming gradient,
// so that it can be differentiated as often as one likes.
struct Region : torch::autograd::Function<Region> {
  static Tensor forward(
      AutogradContext* context,
      const Tensor& x,
      const CommunicatorPtr& group,
      Map map,
      Map transposed) {
    ops::carry(context, Transposed{group, map, transposed});
    return map(x, *group);
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto& [group, map, transposed] = ops::carried<Transposed>(context);
    // Undefined on every rank or on none: the ranks run the same graph.
    if (gradients[0].defined())
      gradients[0] = torch::GradMode::is_enabled()
                         ? Region::apply(gradients[0], group, transposed, map)
                         : transposed(gradients[0], *group);
    return {gradients[0], Tensor(), Tensor(), Tensor()};
  }
};

struct ReduceInPlace : torch::autograd::Function<ReduceInPlace> {
  static Tensor
  forward(AutogradContext* context, Tensor x, const CommunicatorPtr& group) {
    ops::carry(context, Transposed{group, all_reduced, same});
    group->all_reduce(x)->wait();
    // The backend wrote through a pointer that autograd knows nothing of.
    x.unsafeGetTensorImpl()->bump_version();
    context->mark_dirty({x});
    return x;
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto& [group, map, transposed] = ops::carried<Transposed>(context);
    if (gradients[0].defined() && torch::GradMode::is_enabled())
      gradients[0] = Region::apply(gradients[0], group, transposed, map);
    return {gradients[0], Tensor()};
  }
};

}  // namespace

Tensor copy_region(const Tensor& x, const CommunicatorPtr& group) {
  return Region::apply(x, group, same, all_reduced);
}

Tensor sum_region(const Tensor& x, const CommunicatorPtr& group) {
  return Region::apply(x, group, all_reduced, all_reduced);
}

Tensor reduce_region_(Tensor x, const CommunicatorPtr& group) {
  return ReduceInPlace::apply(x, group);
}

Tensor gather_region(const Tensor& x, const CommunicatorPtr& group) {
  return Region::apply(x, group, all_columns, my_columns);
}

Tensor gather_tokens(const Tensor& x, const CommunicatorPtr& group) {
  return Region::apply(x, group, all_rows, my_summed_rows);
}

Tensor reduce_tokens(const Tensor& x, const CommunicatorPtr& group) {
  return Region::apply(x, group, my_summed_rows, all_rows);
}

Tensor own_tokens(const TensorParallel& parallel, const Tensor& of_all) {
  if (!of_all.defined() || parallel.tokens != TokenLayout::kSharded)
    return of_all;
  const int64_t tokens = of_all.size(0) / parallel.size();
  return of_all.narrow(0, parallel.rank() * tokens, tokens);
}

Tensor leave_region(Tensor x, const TensorParallel& parallel) {
  if (parallel.size() == 1)
    return x;
  switch (parallel.tokens) {
    case TokenLayout::kReplicated:
      return reduce_region_(std::move(x), parallel.group);
    case TokenLayout::kSharded:
      return reduce_tokens(x, parallel.group);
  }
  BRIGADE_ASSERT(false, "token layout");
}

}  // namespace brigade

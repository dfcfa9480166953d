// The tensors that an operation of libtorch was given, as an observer of the
// dispatcher (at::RecordFunction) sees them.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/types.h>

namespace brigade {

// Calls visit(tensor) for each tensor in `value`, also those in lists.
// Undefined ones and those without memory of their own are left out.
template <typename Visit>
void visit_op_input(const c10::IValue& value, const Visit& visit) {
  const auto visit_tensor = [&](const torch::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage())
      visit(tensor);
  };
  if (value.isTensor()) {
    visit_tensor(value.toTensor());
  } else if (value.isTensorList()) {
    for (const torch::Tensor& tensor : value.toTensorVector())
      visit_tensor(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef())
      visit_op_input(each, visit);
  }
}

}  // namespace brigade

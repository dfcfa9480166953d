#include "brigade/ops/kernel_set.h"

#include <string>

#include "brigade/ops/describe.h"

namespace brigade::ops {

void KernelSet::linears(const std::vector<LinearOperands>& each) const {
  for (const LinearOperands& one : each)
    linear(one.y, one.x, one.weight, {});
}

void KernelSet::linear_input_grads(
    const std::vector<LinearOperands>& each) const {
  for (const LinearOperands& one : each)
    linear_input_grad(one.x, one.y, one.weight);
}

namespace {

const Tensor* first_defined(std::initializer_list<const Tensor*> operands) {
  for (const Tensor* operand : operands) {
    if (operand->defined())
      return operand;
  }
  return nullptr;
}

}  // namespace

const KernelSet& choose_kernels(
    std::string_view op,
    Kernels wanted,
    std::initializer_list<const Tensor*> operands) {
  if (wanted == Kernels::kAten)
    return aten_kernels();
  const Tensor* some = first_defined(operands);
  const KernelSet& own = some != nullptr && some->is_cuda() &&
                                 cuda_kernels() != nullptr &&
                                 wanted == Kernels::kAuto
                             ? *cuda_kernels()
                             : cpu_kernels();
  const Tensor* refused = nullptr;
  const Tensor* first = nullptr;
  for (const Tensor* operand : operands) {
    if (!operand->defined())
      continue;
    if (operand->numel() == 0)
      return aten_kernels();
    if (first == nullptr)
      first = operand;
    if (!own.takes(operand->device(), operand->scalar_type()) ||
        operand->scalar_type() != first->scalar_type() ||
        operand->device() != first->device())
      refused = operand;
  }
  if (refused == nullptr)
    return own;
  require(
      wanted == Kernels::kAuto,
      op,
      "the CPU kernels were asked for, but an operand is {} on {}; they take "
      "tensors on the CPU that are all bf16 or all float32; set the kernels to "
      "auto or aten",
      describe(*refused),
      refused->device().str());
  return aten_kernels();
}

}  // namespace brigade::ops

// Plain C++ state on an autograd node: saved_data holds IValues, and an
// unregistered class travels in one as a capsule.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace brigade::ops {

template <typename T>
struct Carried : torch::CustomClassHolder {
  explicit Carried(T carried_value) : value(std::move(carried_value)) {}
  T value;
};

template <typename T>
T& carry(torch::autograd::AutogradContext* context, T value) {
  auto carried = c10::make_intrusive<Carried<T>>(std::move(value));
  T& reference = carried->value;
  context->saved_data["carried"] = c10::IValue::make_capsule(carried);
  return reference;
}

template <typename T>
T& carried(torch::autograd::AutogradContext* context) {
  auto holder = context->saved_data["carried"].toCapsule();
  return static_cast<Carried<T>*>(holder.get())->value;
}

}  // namespace brigade::ops

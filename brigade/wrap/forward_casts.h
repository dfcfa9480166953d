// Finds the tensors in arguments and results of forward(), whatever its
// signature: tensors, IValues of a torch::jit::Module (with tuples, lists and
// dicts), and tuples, pairs, vectors, arrays and optionals of them.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type_base.h>
#include <torch/types.h>

#include <array>
#include <optional>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "brigade/base/error.h"

namespace brigade {

// The tensor in another floating-point dtype; returned as it is if it is not
// floating-point, or undefined.
inline torch::Tensor cast_floating(
    const torch::Tensor& tensor,
    torch::ScalarType dtype) {
  return tensor.defined() && tensor.is_floating_point() ? tensor.to(dtype)
                                                        : tensor;
}

namespace detail {

template <typename T>
struct TensorVisitor {
  static constexpr bool kIsKnown = std::is_arithmetic_v<T>;
  template <typename Visit>
  static void visit(T& /*value*/, const Visit& /*visit*/) {}
};

template <>
struct TensorVisitor<torch::Tensor> {
  static constexpr bool kIsKnown = true;
  template <typename Visit>
  static void visit(torch::Tensor& value, const Visit& visit) {
    visit(value);
  }
};

template <>
struct TensorVisitor<c10::IValue> {
  static constexpr bool kIsKnown = true;
  template <typename Visit>
  static void visit(c10::IValue& value, const Visit& visit) {
    if (value.isTensor()) {
      auto tensor = value.toTensor();
      visit(tensor);
      value = tensor;
    } else if (value.isTuple()) {
      std::vector<c10::IValue> elements = value.toTuple()->elements();
      for (c10::IValue& element : elements)
        TensorVisitor<c10::IValue>::visit(element, visit);
      value = c10::ivalue::Tuple::create(std::move(elements));
    } else if (value.isList()) {
      if (holds_no_tensors(value.toList().elementType()->kind()))
        return;
      const auto list = value.toList().copy();
      for (size_t i = 0; i < list.size(); ++i) {
        c10::IValue element = list.get(i);
        TensorVisitor<c10::IValue>::visit(element, visit);
        list.set(i, std::move(element));
      }
      value = list;
    } else if (value.isGenericDict()) {
      const auto dict = value.toGenericDict().copy();
      for (const auto& entry : dict) {
        c10::IValue element = entry.value();
        TensorVisitor<c10::IValue>::visit(element, visit);
        entry.setValue(element);
      }
      value = dict;
    } else if (value.isObject()) {
      check_object(value);
    }
  }
  static bool holds_no_tensors(c10::TypeKind element) {
    return element == c10::TypeKind::IntType ||
           element == c10::TypeKind::FloatType ||
           element == c10::TypeKind::BoolType ||
           element == c10::TypeKind::StringType;
  }
  // Throws UsageError if the object, or what it refers to, has a tensor that
  // would have to be cast.
  static void check_object(const c10::IValue& object) {
    std::set<const void*> seen;  // objects may refer to each other
    object.visit([&](const c10::IValue& each) {
      if (each.isTensor() && each.toTensor().defined() &&
          each.toTensor().is_floating_point())
        throw UsageError(
            "[data_parallel] forward() takes or returns a TorchScript object "
            "with floating-point tensors, whose dtype mixed precision cannot "
            "change; use tensors, or tuples, lists and dicts of them");
      return each.isObject() && !seen.insert(each.toObject().get()).second;
    });
  }
};

template <typename Range>
struct RangeVisitor {
  using Element = typename Range::value_type;
  static constexpr bool kIsKnown = TensorVisitor<Element>::kIsKnown;
  template <typename Visit>
  static void visit(Range& values, const Visit& visit) {
    if constexpr (!std::is_arithmetic_v<Element>) {
      for (Element& value : values)
        TensorVisitor<Element>::visit(value, visit);
    }
  }
};

template <typename T>
struct TensorVisitor<std::vector<T>> : RangeVisitor<std::vector<T>> {};
template <typename T, size_t N>
struct TensorVisitor<std::array<T, N>> : RangeVisitor<std::array<T, N>> {};

template <typename T>
struct TensorVisitor<std::optional<T>> {
  static constexpr bool kIsKnown = TensorVisitor<T>::kIsKnown;
  template <typename Visit>
  static void visit(std::optional<T>& value, const Visit& visit) {
    if (value)
      TensorVisitor<T>::visit(*value, visit);
  }
};

template <typename... T>
struct TensorVisitor<std::tuple<T...>> {
  static constexpr bool kIsKnown = (TensorVisitor<T>::kIsKnown && ...);
  template <typename Visit>
  static void visit(std::tuple<T...>& value, const Visit& visit) {
    std::apply(
        [&](T&... element) { (TensorVisitor<T>::visit(element, visit), ...); },
        value);
  }
};

template <typename A, typename B>
struct TensorVisitor<std::pair<A, B>> {
  static constexpr bool kIsKnown =
      TensorVisitor<A>::kIsKnown && TensorVisitor<B>::kIsKnown;
  template <typename Visit>
  static void visit(std::pair<A, B>& value, const Visit& visit) {
    TensorVisitor<A>::visit(value.first, visit);
    TensorVisitor<B>::visit(value.second, visit);
  }
};

}  // namespace detail

// Calls visit(Tensor&), which may replace the tensor, with each tensor of a
// value. Returns false if the value's type may hold tensors that it cannot see;
// throws UsageError for a TorchScript object with floating-point ones.
template <typename T, typename Visit>
bool visit_tensors(T& value, const Visit& visit) {
  detail::TensorVisitor<T>::visit(value, visit);
  return detail::TensorVisitor<T>::kIsKnown;
}

// A copy of an argument of forward() with its tensors cast (without a dtype
// they are not), or the argument itself if no tensors can be seen in its type.
template <typename T>
decltype(auto) cast_input(T&& input, std::optional<torch::ScalarType> dtype) {
  using Plain = std::remove_cvref_t<T>;
  if constexpr (
      std::is_arithmetic_v<Plain> || !detail::TensorVisitor<Plain>::kIsKnown) {
    return static_cast<T&&>(input);
  } else {
    Plain result(std::forward<T>(input));
    if (dtype)
      detail::TensorVisitor<Plain>::visit(result, [&](torch::Tensor& tensor) {
        tensor = cast_floating(tensor, *dtype);
      });
    return result;
  }
}

// Passes a value on with the value category of T, which was deduced from a
// forwarding reference.
template <typename T, typename U>
decltype(auto) pass_like(U& value) {
  if constexpr (std::is_lvalue_reference_v<T>)
    return (value);
  else
    return std::move(value);
}

}  // namespace brigade

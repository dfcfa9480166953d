// Where the interfaces of libtorch 1.13 to 2.14 differ. What depends on the
// version is found out from libtorch's own declarations, not from its number.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace brigade::ops {

// What holds a node of autograd's graph: std::shared_ptr, and in 2.14
// c10::intrusive_ptr.
using NodePtr = std::remove_cvref_t<
    decltype(std::declval<const torch::Tensor&>().grad_fn())>;

// A node that is destroyed as libtorch does it: without recursion.
template <typename NodeType, typename... Arguments>
NodePtr make_node(Arguments&&... arguments) {
  using torch::autograd::Node;
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<Node>>) {
    // Found by its argument, only where it is needed.
    const auto destroy = [](auto* node) { deleteNode(node); };
    return NodePtr(
        new NodeType(std::forward<Arguments>(arguments)...),
        [destroy](Node* node) { destroy(node); });
  } else {
    return c10::make_intrusive<NodeType>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace brigade::ops

// Collectives on tensors of an autograd graph.
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using torch::Tensor;

// A Work releases its tensors on the backend's thread. If these belonged to the
// graph, they would free the graph and the communicator that it holds.
TEST(Communicator, HoldsNoTensorOfAGraph) {
  testing::run_ranks(2, [](const CommunicatorPtr& group) {
    const auto check = [&](const std::function<WorkPtr(Tensor, Tensor)>& launch,
                           torch::ScalarType dtype) {
      Tensor small = torch::ones({3}, dtype);
      Tensor large = torch::ones({6}, dtype);
      const WorkPtr work = launch(small, large);
      EXPECT_EQ(small.use_count(), 1U);
      EXPECT_EQ(large.use_count(), 1U);
      work->wait();
    };
    const int other = 1 - group->rank();
    for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
      check([&](Tensor a, Tensor) { return group->all_reduce(a); }, dtype);
      check(
          [&](Tensor a, Tensor b) { return group->reduce_scatter(a, b); },
          dtype);
      check([&](Tensor a, Tensor b) { return group->all_gather(b, a); }, dtype);
      check([&](Tensor a, Tensor) { return group->broadcast(a, 0); }, dtype);
      check(
          [&](Tensor a, Tensor b) {
            const WorkPtr send = group->send(a, other);
            group->recv(b.narrow(0, 0, 3), other)->wait();
            return send;
          },
          dtype);
    }
  });
}

}  // namespace
}  // namespace brigade

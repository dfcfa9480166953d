#include "brigade/pipeline_parallel/tied_weight.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

TEST(TiedWeight, BothEndsGetTheSumAndTheMiddleNothing) {
  // Odd numbers of elements; the last one needs three pieces.
  for (int64_t numel : {0, 1, 33, 5 * 1024 * 1024 + 7}) {
    for (int ranks : {1, 2, 3}) {
      testing::run_ranks(ranks, [&](CommunicatorPtr pp) {
        const auto of_rank = [&](int rank) {
          return torch::arange(numel, torch::kFloat) * 0.37 + rank;
        };
        torch::Tensor gradient = of_rank(pp->rank());
        sum_tied_gradient(*pp, gradient);
        const bool is_end = pp->rank() == 0 || pp->rank() == ranks - 1;
        const torch::Tensor expected = ranks > 1 && is_end
                                           ? of_rank(0) + of_rank(ranks - 1)
                                           : of_rank(pp->rank());
        EXPECT_TRUE(torch::equal(gradient, expected))
            << numel << " elements, rank " << pp->rank() << " of " << ranks;
      });
    }
  }
}

}  // namespace
}  // namespace brigade

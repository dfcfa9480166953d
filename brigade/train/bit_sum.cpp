#include "brigade/train/bit_sum.h"

#include "brigade/base/check.h"

namespace brigade {
namespace {

torch::ScalarType bits_of(const torch::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1:
      return torch::kChar;
    case 2:
      return torch::kShort;
    case 4:
      return torch::kInt;
    default:
      BRIGADE_ASSERT(
          tensor.element_size() == 8,
          "elements of {} bytes",
          tensor.element_size());
      return torch::kLong;
  }
}

}  // namespace

int64_t sum_of_bits(const torch::Tensor& tensor) {
  return tensor.detach()
      .view(bits_of(tensor))
      .sum(torch::kLong)
      .item<int64_t>();
}

}  // namespace brigade

#include "brigade/model/init_weights.h"

#include <ATen/CPUGeneratorImpl.h>

#include <limits>
#include <string_view>

#include "brigade/base/hash.h"

namespace brigade {
namespace {

uint64_t seed_of(std::string_view name, int64_t seed) {
  return mix_bits(
      fnv1a_64(name) + 0x9e3779b97f4a7c15ULL * static_cast<uint64_t>(seed));
}

}  // namespace

torch::Tensor initial_weight(const ParameterRow& row, int64_t seed) {
  const torch::NoGradGuard no_grad;
  auto tensor = torch::empty(row.shape, torch::kFloat);
  switch (row.initialization) {
    case Initialization::kZeros:
      return tensor.zero_();
    case Initialization::kOnes:
      return tensor.fill_(1);
    case Initialization::kConstant:
      return tensor.fill_(row.initial_value);
    case Initialization::kRowNorms:
      return tensor.fill_(std::numeric_limits<float>::quiet_NaN());
    case Initialization::kNormal:
    case Initialization::kUniform:
      break;
  }
  auto generator = at::detail::createCPUGenerator(seed_of(row.name, seed));
  if (row.initialization == Initialization::kUniform)
    return tensor.uniform_(-row.initial_bound, row.initial_bound, generator);
  return tensor.normal_(0, row.initial_std, generator);
}

}  // namespace brigade

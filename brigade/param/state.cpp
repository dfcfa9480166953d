#include "brigade/param/state.h"

#include "brigade/ops/block_codes.h"

namespace brigade {
namespace {

torch::ScalarType dtype_of(StateDtype dtype) {
  switch (dtype) {
    case StateDtype::kFloat32:
      break;
    case StateDtype::kBfloat16:
      return torch::kBFloat16;
    case StateDtype::kInt16:
      return torch::kShort;
    case StateDtype::kSignedCodes:
      return torch::kChar;
    case StateDtype::kUnsignedCodes:
      return torch::kByte;
  }
  return torch::kFloat;
}

}  // namespace

State zero_state(const StateSpec& spec, const torch::Tensor& weight) {
  const auto options = weight.options().dtype(dtype_of(spec.dtype));
  return zero_state(
      State{spec.name, torch::empty({0}, options)}, weight.sizes());
}

State zero_state(const State& like, torch::IntArrayRef shape) {
  const auto options = like.tensor.options();
  State state{like.name, torch::zeros(shape, options)};
  // A scale of zero makes every value 0, whatever the code.
  if (ops::is_codes(like.tensor.scalar_type()))
    state.scales = torch::zeros(
        {count_blocks(state.tensor.numel())}, options.dtype(torch::kFloat));
  return state;
}

State narrow_state(const State& flat, int64_t begin, int64_t numel) {
  State part{flat.name, flat.tensor.narrow(0, begin, numel)};
  if (flat.scales.defined())
    part.scales =
        flat.scales.narrow(0, begin / kBlockNumel, count_blocks(numel));
  return part;
}

torch::Tensor values_of(const State& state) {
  return state.scales.defined()
             ? ops::recodable_values(state.tensor, state.scales)
             : state.tensor;
}

void set_values(const State& state, const torch::Tensor& values) {
  torch::Tensor tensor = state.tensor;
  if (state.scales.defined())
    ops::encode_blocks(
        values.to(torch::kFloat).contiguous(), tensor, state.scales);
  else
    tensor.copy_(values);
}

void zero(const State& state) {
  torch::Tensor tensor = state.tensor;
  tensor.zero_();
  if (state.scales.defined()) {
    torch::Tensor scales = state.scales;
    scales.zero_();  // zero times any code is 0
  }
}

void copy_state(const State& to, const State& from) {
  torch::Tensor(to.tensor).copy_(from.tensor);
  if (to.scales.defined())
    torch::Tensor(to.scales).copy_(from.scales);
}

torch::Tensor find_state(
    const std::vector<State>& states,
    std::string_view name) {
  for (const State& state : states) {
    if (state.name == name)
      return state.tensor;
  }
  return {};
}

}  // namespace brigade

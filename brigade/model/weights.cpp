#include "brigade/model/weights.h"

#include <fmt/format.h>

#include <string_view>

#include "brigade/base/check.h"
#include "brigade/base/hash.h"
#include "brigade/ops/weight_grad.h"
#include "brigade/tensor_parallel/mappings.h"
#include "brigade/tensor_parallel/parallel_linear.h"

namespace brigade {
namespace {

constexpr std::string_view kWeight = ".weight";

std::string without_weight(const std::string& name) {
  BRIGADE_ASSERT(name.ends_with(kWeight), "'{}' is no weight", name);
  return name.substr(0, name.size() - kWeight.size());
}

}  // namespace

torch::Tensor Weights::row_parallel(
    const ModelContext& context,
    const torch::Tensor& x,
    const ops::RemadeInput& input) const {
  auto options = context.linear_options();
  options.input = input;
  options.adapters = {adapter};
  return row_parallel_linear(context.tensor_parallel, x, weight, bias, options);
}

torch::Tensor Weights::narrow_product(
    const ModelContext& context,
    const torch::Tensor& x) const {
  const auto times = [&](const torch::Tensor& input, const torch::Tensor& by) {
    const torch::Tensor own =
        context.weight_grad == ops::WeightGrad::kAccumulate
            ? ops::accumulating("narrow_product", by)
            : by;
    return torch::matmul(input, own.to(x.scalar_type()).t());
  };
  const torch::Tensor y = times(x, weight);
  if (!adapter.a.defined())
    return y;
  torch::Tensor left = x;
  double scale = adapter.scale;
  const ops::InputDropout dropout{
      context.dropout.rate,
      own_tokens(context.tensor_parallel, context.dropout.token_keys)};
  if (dropout.is_used()) {
    const torch::Tensor mask = torch::ones(x.sizes(), x.options());
    ops::drop_elements(mask, dropout, adapter.key, context.kernels);
    left = x * mask;
    scale /= 1 - dropout.rate;
  }
  return y + times(times(left, adapter.a), adapter.b) * scale;
}

std::vector<torch::Tensor> GroupedWeights::weights() const {
  std::vector<torch::Tensor> weights;
  for (const auto& member : members_)
    weights.push_back(member->weight);
  return weights;
}

std::vector<ops::LowRank> GroupedWeights::adapters() const {
  std::vector<ops::LowRank> adapters;
  for (const auto& member : members_)
    adapters.push_back(member->adapter);
  return adapters;
}

std::vector<torch::Tensor> GroupedWeights::column_parallel(
    const ModelContext& context,
    const torch::Tensor& x) const {
  std::vector<torch::Tensor> biases;  // undefined ones without
  for (const auto& member : members_)
    biases.push_back(member->bias);
  auto options = context.linear_options();
  options.adapters = adapters();
  return column_parallel_linear(
      context.tensor_parallel, x, weights(), biases, options);
}

ParameterSource::ParameterSource(const ModelContext& context)
    : adapter_scale_(context.description.adapter.scale()) {
  auto table = std::make_shared<Table>();
  const TensorParallel& parallel = context.tensor_parallel;
  for (const ParameterRow& row : list_parameters(context.description)) {
    const ParamShard shard = shard_parameter(
        row, {.tp = parallel.size()}, {.tp = parallel.rank()}, parallel.tokens);
    const auto dtype = row.is_float32 ? torch::kFloat : context.dtype;
    table->locals[row.name] = {
        shard.shape, torch::dtype(dtype).device(context.device)};
    if (!row.group.empty())
      table->groups[row.group].push_back(row.name);
  }
  table_ = std::move(table);
}

ParameterSource ParameterSource::inside(const std::string& name) const {
  ParameterSource source = *this;
  source.prefix_ += name + ".";
  return source;
}

std::shared_ptr<Weights> ParameterSource::make(const std::string& name) const {
  const auto weights = std::make_shared<Weights>();
  const std::string path = prefix_ + name;
  // Undefined where the table has none.
  const auto add = [&](const char* kind, bool requires_grad = true) {
    const auto found = table_->locals.find(path + "." + kind);
    if (found == table_->locals.end())
      return torch::Tensor();
    const auto& [shape, options] = found->second;
    return weights->register_parameter(
        kind, torch::empty(shape, options), requires_grad);
  };
  weights->weight = add("weight");
  BRIGADE_ASSERT(
      weights->weight.defined(), "'{}' is not in the model's table", path);
  weights->bias = add("bias");
  weights->score_bias = add("e_score_correction_bias", /*requires_grad=*/false);
  if (table_->locals.contains(path + ".lora_A.weight")) {
    const auto part = [&](const char* kind) {
      return weights->register_module(kind, inside(name).make(kind))->weight;
    };
    weights->adapter = {
        part("lora_A"),
        part("lora_B"),
        adapter_scale_,
        mix_bits(fnv1a_64(path))};
    weights->adapter.magnitude = add("lora_magnitude_vector");
    if (weights->adapter.magnitude.defined())
      weights->adapter.kept_squares = std::make_shared<torch::Tensor>();
  }
  return weights;
}

GroupedWeights ParameterSource::make_group(
    torch::nn::Module& owner,
    const std::string& name) const {
  const auto group =
      table_->groups.find(fmt::format("{}{}{}", prefix_, name, kWeight));
  BRIGADE_ASSERT(
      group != table_->groups.end(),
      "group '{}{}' is not in the model's table",
      prefix_,
      name);
  std::vector<std::shared_ptr<Weights>> members;
  for (const std::string& weight : group->second) {
    const std::string member = without_weight(weight.substr(prefix_.size()));
    members.push_back(owner.register_module(member, make(member)));
  }
  return GroupedWeights(std::move(members));
}

}  // namespace brigade

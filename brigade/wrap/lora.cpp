#include "brigade/wrap/lora.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/ops/adapted_weight.h"

namespace brigade {
namespace {

using torch::Tensor;

// A module without behaviour, which gives its parameter a name.
struct LowRankWeight : torch::nn::Module {
  explicit LowRankWeight(Tensor values)
      : weight(register_parameter("weight", std::move(values))) {}
  Tensor weight;
};

struct NamedLinear {
  std::string name;
  std::shared_ptr<torch::nn::LinearImpl> linear;
};

std::vector<NamedLinear> linears_of(torch::nn::Module& module) {
  std::vector<NamedLinear> linears;
  for (const auto& item : module.named_modules(
           /*name_prefix=*/"", /*include_self=*/false)) {
    if (auto linear =
            std::dynamic_pointer_cast<torch::nn::LinearImpl>(item.value()))
      linears.push_back({item.key(), std::move(linear)});
  }
  return linears;
}

void check(
    const std::vector<NamedLinear>& linears,
    const AdapterOptions& options) {
  std::vector<std::string> problems;
  if (options.rank < 1)
    problems.push_back(
        fmt::format("[lora] rank {} is not at least 1", options.rank));
  if (options.dropout != 0)
    problems.push_back(fmt::format(
        "[lora] dropout {}: apply() adds an adapter to its weight, so that "
        "they have one input; set it to 0",
        options.dropout));
  std::vector<std::string> names;
  for (const NamedLinear& each : linears) {
    names.push_back(each.name);
    if (each.linear->named_children().contains("lora_A"))
      problems.push_back(
          fmt::format("[lora] '{}' has an adapter already", each.name));
  }
  for (const std::string& target : options.targets) {
    if (std::none_of(names.begin(), names.end(), [&](const auto& name) {
          return is_target(target, name);
        }))
      problems.push_back(fmt::format(
          "[lora] target '{}' is the end of no linear's name; there are: {}",
          target,
          fmt::join(names, ", ")));
  }
  if (!problems.empty())
    throw ConfigError(problems);
}

}  // namespace

void Lora::apply() const {
  for (const Adapted& each : adapted_)
    each.linear->weight = ops::adapted_weight(each.weight, each.adapter);
}

void Lora::merge() {
  const torch::NoGradGuard no_grad;
  for (Adapted& each : adapted_) {
    ops::LowRank& adapter = each.adapter;
    each.weight.copy_(ops::adapted_weight(each.weight, adapter));
    adapter.b.zero_();
    if (adapter.magnitude.defined())
      adapter.magnitude.copy_(each.weight.norm(2, {1}));
    each.linear->weight = each.weight;
  }
}

std::vector<Tensor> Lora::parameters() const {
  std::vector<Tensor> parameters;
  for (const Adapted& each : adapted_) {
    parameters.push_back(each.adapter.a);
    parameters.push_back(each.adapter.b);
    if (each.adapter.magnitude.defined())
      parameters.push_back(each.adapter.magnitude);
  }
  return parameters;
}

Lora add_lora(torch::nn::Module& module, const AdapterOptions& options) {
  const std::vector<NamedLinear> linears = linears_of(module);
  check(linears, options);
  for (Tensor& parameter : module.parameters())
    parameter.set_requires_grad(false);
  Lora lora;
  for (const auto& [name, linear] : linears) {
    if (std::none_of(
            options.targets.begin(),
            options.targets.end(),
            [&name = name](const std::string& target) {
              return is_target(target, name);
            }))
      continue;
    const Tensor weight = linear->weight;
    const double bound = 1 / std::sqrt(static_cast<double>(weight.size(1)));
    const auto add = [&linear = linear](
                         const char* kind, const Tensor& values) {
      return linear
          ->register_module(kind, std::make_shared<LowRankWeight>(values))
          ->weight;
    };
    ops::LowRank adapter;
    adapter.a =
        add("lora_A",
            torch::empty({options.rank, weight.size(1)}, weight.options())
                .uniform_(-bound, bound));
    adapter.b =
        add("lora_B",
            torch::zeros({weight.size(0), options.rank}, weight.options()));
    adapter.scale = options.scale();
    if (options.use_dora)
      adapter.magnitude = linear->register_parameter(
          "lora_magnitude_vector", weight.detach().norm(2, {1}));
    lora.adapted_.push_back({linear, weight, std::move(adapter)});
  }
  lora.apply();
  return lora;
}

}  // namespace brigade

#include "brigade/wrap/lora.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/ops/adapted_weight.h"

namespace brigade {
namespace {

using torch::Tensor;

constexpr const char* kMagnitude = "lora_magnitude_vector";

// A module without behaviour, which gives its parameter a name.
struct LowRankWeight : torch::nn::Module {
  LowRankWeight(Tensor values, double scale_of_product)
      : weight(register_parameter("weight", std::move(values))),
        scale(scale_of_product) {}
  Tensor weight;
  double scale;  // of B A
};

struct NamedLinear {
  std::vector<std::string> names;  // of the places where it is registered
  std::shared_ptr<torch::nn::LinearImpl> linear;
};

bool is_target_of(const NamedLinear& each, const std::string& target) {
  return std::any_of(
      each.names.begin(), each.names.end(), [&](const std::string& name) {
        return is_target(target, name);
      });
}

// Each once, with all of its names.
std::vector<NamedLinear> linears_of(const torch::nn::Module& module) {
  std::vector<NamedLinear> linears;
  std::unordered_map<const void*, size_t> index;
  for (const auto& item : module.named_modules(
           /*name_prefix=*/"", /*include_self=*/false)) {
    auto linear =
        std::dynamic_pointer_cast<torch::nn::LinearImpl>(item.value());
    if (linear == nullptr)
      continue;
    const auto [at, is_new] = index.emplace(linear.get(), linears.size());
    if (is_new)
      linears.push_back({.names = {}, .linear = std::move(linear)});
    linears[at->second].names.push_back(item.key());
  }
  return linears;
}

// A or B of a linear; null if it has none.
const LowRankWeight* find_part(
    const torch::nn::LinearImpl& linear,
    const char* kind) {
  const auto children = linear.named_children();
  const auto* found = children.find(kind);
  return found == nullptr ? nullptr
                          : dynamic_cast<const LowRankWeight*>(found->get());
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
  if (options.targets.empty())
    problems.emplace_back(
        "[lora] targets is empty, so that nothing would train; give the ends "
        "of linears' names, or \"all-linear\"");
  std::vector<std::string> names;
  for (const NamedLinear& each : linears) {
    names.insert(names.end(), each.names.begin(), each.names.end());
    if (each.linear->named_children().contains("lora_A"))
      problems.push_back(
          fmt::format("[lora] '{}' has an adapter already", each.names[0]));
  }
  for (const std::string& target : options.targets) {
    if (std::none_of(linears.begin(), linears.end(), [&](const auto& each) {
          return is_target_of(each, target);
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

Lora lora_of(const torch::nn::Module& module) {
  Lora lora;
  for (const auto& [names, linear] : linears_of(module)) {
    const LowRankWeight* a = find_part(*linear, "lora_A");
    const LowRankWeight* b = find_part(*linear, "lora_B");
    if (a == nullptr || b == nullptr)
      continue;
    const auto own = linear->named_parameters(/*recurse=*/false);
    ops::LowRank adapter{.a = a->weight, .b = b->weight, .scale = a->scale};
    if (const Tensor* magnitude = own.find(kMagnitude))
      adapter.magnitude = *magnitude;
    lora.adapted_.push_back({linear, own["weight"], std::move(adapter)});
  }
  return lora;
}

Lora add_lora(torch::nn::Module& module, const AdapterOptions& options) {
  const std::vector<NamedLinear> linears = linears_of(module);
  check(linears, options);
  for (Tensor& parameter : module.parameters())
    parameter.set_requires_grad(false);
  for (const NamedLinear& each : linears) {
    const auto& linear = each.linear;
    if (std::none_of(
            options.targets.begin(),
            options.targets.end(),
            [&](const std::string& target) {
              return is_target_of(each, target);
            }))
      continue;
    const Tensor weight = linear->weight;
    const double bound = 1 / std::sqrt(static_cast<double>(weight.size(1)));
    const auto add = [&](const char* kind, const Tensor& values) {
      linear->register_module(
          kind, std::make_shared<LowRankWeight>(values, options.scale()));
    };
    add("lora_A",
        torch::empty({options.rank, weight.size(1)}, weight.options())
            .uniform_(-bound, bound));
    add("lora_B",
        torch::zeros({weight.size(0), options.rank}, weight.options()));
    if (options.use_dora)
      linear->register_parameter(kMagnitude, weight.detach().norm(2, {1}));
  }
  Lora lora = lora_of(module);
  lora.apply();
  return lora;
}

}  // namespace brigade

#include "brigade/checkpoint/adapter_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "brigade/base/error.h"
#include "brigade/checkpoint/hugging_face_names.h"
#include "brigade/checkpoint/torch_dtype.h"
#include "brigade/model_spec/adapter.h"
#include "brigade/options/adapter.h"

namespace brigade {
namespace {

// PEFT's prefix of the names of the model inside its own.
constexpr std::string_view kPrefix = "base_model.model.";

using Tensors = std::map<std::string, const SafetensorsTensor*>;

bool ends_with_name(const std::string& text, std::string_view name) {
  return text == name || text.ends_with("." + std::string(name));
}

class AdapterLocator {
 public:
  AdapterLocator(
      const SafetensorsFile& file,
      const DecoderConfig& model,
      const AdapterNameOptions& options)
      : options_(options),
        experts_(model.experts ? model.experts->num_experts : 0) {
    for (const SafetensorsTensor& tensor : file.tensors())
      unused_[own_adapter_name(tensor.name)] = &tensor;
    tensors_ = unused_;
    ModelDescription description = describe_model(model);
    for (const ParameterRow& row : list_parameters(description)) {
      if (!row.stack.empty())
        stacked_[row.name] = row;
      if (!row.stack.empty() || row.role == ParameterRole::kRouter)
        no_linears_.insert(row.name);
    }
    description.adapter = {
        .rank = options.rank,
        .use_dora = options.use_dora,
        .targets = {kAllLinear}};
    rows_ = list_parameters(description);
  }

  std::map<std::string, StoredAdapterPart> locate() {
    for (const ParameterRow& row : rows_) {
      if (row.stored_in == StoredIn::kAdapter && !locate_own(row))
        locate_in_stack(row);
    }
    for (const ParameterRow& row : rows_) {
      const std::string module = adapted_module(row.name);
      if (!module.empty() && !parts_.contains(row.name) &&
          (fits_.contains(module) || is_required(module)))
        wrong_.push_back(row.name + " is missing");
    }
    for (const auto& [name, tensor] : unused_) {
      const std::string problem = surplus(name);
      if (wrong_.empty() || wrong_.back() != problem)  // of A, of B
        wrong_.push_back(problem);
    }
    return std::move(parts_);
  }
  const std::vector<std::string>& wrong() const { return wrong_; }

 private:
  const AdapterNameOptions& options_;
  int64_t experts_;
  Tensors tensors_, unused_;
  std::map<std::string, ParameterRow> stacked_;  // experts' weights
  std::set<std::string> no_linears_;             // weights
  std::vector<ParameterRow> rows_;
  std::map<std::string, StoredAdapterPart> parts_;
  std::set<std::string> fits_;  // linears that the model and the file have
  std::vector<std::string> wrong_;

  bool is_required(const std::string& module) const {
    const auto& targets = options_.target_modules;
    return !no_linears_.contains(module + ".weight") &&
           std::any_of(
               targets.begin(), targets.end(), [&](const std::string& target) {
                 return ends_with_name(module, target);
               });
  }

  const SafetensorsTensor* find(const std::string& name) {
    // PEFT writes what transformers 5 has in memory.
    for (const std::string& each : {name, name_in_memory(name)}) {
      const auto found = tensors_.find(each);
      if (found == tensors_.end())
        continue;
      unused_.erase(each);
      return found->second;
    }
    return nullptr;
  }

  void expect(
      const SafetensorsTensor& tensor,
      const std::string& name,
      const std::vector<int64_t>& shape) {
    if (std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end()) != shape)
      wrong_.push_back(fmt::format(
          "{} is [{}], expected [{}]",
          name,
          fmt::join(tensor.shape, ", "),
          fmt::join(shape, ", ")));
  }

  bool locate_own(const ParameterRow& row) {
    const SafetensorsTensor* tensor = find(row.name);
    if (tensor == nullptr)
      return false;
    const std::string module = adapted_module(row.name);
    fits_.insert(module);
    expect(*tensor, row.name, row.shape);
    const int64_t columns = row.shape.size() > 1 ? row.shape[1] : 1;
    parts_[row.name] = {
        .tensor = tensor,
        .rows = row.shape[0],
        .row_step = columns,
        .columns = columns,
        .column_step = 1,
        .rank = row.shape.size() > 1 ? options_.rank : 0,
        .parameter = {}};
    return true;
  }

  // The module of the adapter of all experts' `parameter`; empty: it has none.
  std::string module_of_stack(
      const std::string& experts,
      const std::string& parameter) const {
    const std::string inner = experts + ".base_layer";
    if (tensors_.contains(inner + kLoraA))
      return parameter == kGateUp ? inner : experts;
    const auto& targets = options_.target_parameters;
    const bool is_target = std::any_of(
        targets.begin(), targets.end(), [&](const std::string& target) {
          return ends_with_name(target, parameter);
        });
    return is_target ? experts : "";
  }

  // A or B of an expert's linear in those of all experts of its layer.
  void locate_in_stack(const ParameterRow& row) {
    const std::string linear = adapted_module(row.name);
    const auto found = stacked_.find(linear + ".weight");
    if (found == stacked_.end())
      return;
    const ParameterRow& weight = found->second;
    const size_t dot = weight.stack.rfind('.');
    const std::string parameter = weight.stack.substr(dot + 1);
    const std::string module =
        module_of_stack(name_in_memory(weight.stack.substr(0, dot)), parameter);
    const bool is_a = row.name.ends_with(kLoraA);
    const SafetensorsTensor* a =
        module.empty() ? nullptr : find(module + kLoraA);
    const SafetensorsTensor* b =
        module.empty() ? nullptr : find(module + kLoraB);
    const bool is_first = weight.stack_row == 0 && is_a;
    if (a == nullptr || b == nullptr || a->shape.empty()) {
      if (is_first && (a != nullptr || b != nullptr))
        wrong_.push_back(fmt::format(
            "{} is missing or a scalar",
            module + (b == nullptr ? kLoraB : kLoraA)));
      return;
    }
    fits_.insert(linear);
    const int64_t in = weight.shape[1];
    const int64_t out = weight.shape[0] * (parameter == kGateUp ? 2 : 1);
    const int64_t rank =
        std::max<int64_t>(1, static_cast<int64_t>(a->shape[0]) / experts_);
    if (is_first) {
      expect(*a, module + kLoraA, {experts_ * rank, in});
      expect(*b, module + kLoraB, {out, rank * experts_});
    }
    if (is_a)
      parts_[row.name] = {
          .tensor = a,
          .first = weight.expert * rank * in,
          .rows = rank,
          .row_step = in,
          .columns = in,
          .column_step = 1,
          .rank = rank,
          .parameter = parameter};
    else
      // An expert's first row is after those of all others in the stack of
      // weights; here they are columns.
      parts_[row.name] = {
          .tensor = b,
          .first = weight.stack_row % out * rank * experts_ + weight.expert,
          .rows = weight.shape[0],
          .row_step = rank * experts_,
          .columns = rank,
          .column_step = experts_,
          .rank = rank,
          .parameter = parameter};
  }

  std::string surplus(const std::string& name) const {
    const std::string module = adapted_module(name);
    if (module.empty())
      return fmt::format(
          "tensor '{}' is not the lora_A, lora_B or lora_magnitude_vector of a "
          "linear",
          name);
    return fits_.contains(module)
               ? fmt::format(
                     "{} is there, but use_dora is false in "
                     "adapter_config.json",
                     name)
               : fmt::format(
                     "{}: the model's layers have no such linear", module);
  }
};

}  // namespace

std::string own_adapter_name(std::string_view stored) {
  return std::string(
      stored.starts_with(kPrefix) ? stored.substr(kPrefix.size()) : stored);
}

std::string stored_adapter_name(const std::string& name) {
  return std::string(kPrefix) + name;
}

std::map<std::string, StoredAdapterPart> locate_adapter(
    const SafetensorsFile& file,
    const DecoderConfig& model,
    const AdapterNameOptions& options,
    const std::string& place) {
  if (file.tensors().empty())
    throw DataError(fmt::format(
        "[adapter] '{}' has no tensors; the adapter was not saved whole",
        file.path().string()));
  AdapterLocator locator(file, model, options);
  auto parts = locator.locate();
  if (!locator.wrong().empty())
    throw DataError(
        fmt::format("{}\n  {}", place, fmt::join(locator.wrong(), "\n  ")));
  return parts;
}

torch::Tensor read_part(const StoredAdapterPart& part) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor stored = as_tensor(*part.tensor);
  const torch::Tensor values =
      torch::empty({part.rows, part.columns}, torch::kFloat);
  values.copy_(stored.as_strided(
      {part.rows, part.columns},
      {part.row_step, part.column_step},
      stored.storage_offset() + part.first));
  return part.rank == 0 ? values.flatten() : values;
}

}  // namespace brigade

#include "brigade/model_spec/adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "brigade/json/nearest.h"

namespace brigade {
namespace {

constexpr std::string_view kWeight = ".weight";

// The name of the linear of a layer that a row is the weight of; empty: of
// none.
std::string linear_of(const ParameterRow& row) {
  if (row.place != Place::kLayer || row.shape.size() != 2 ||
      !row.name.ends_with(kWeight))
    return {};
  return row.name.substr(0, row.name.size() - kWeight.size());
}

// Looks linears up: of a model with experts there may be as many thousands of
// targets as of linears.
class Targets {
 public:
  explicit Targets(const AdapterOptions& adapter)
      : targets_(adapter.targets.begin(), adapter.targets.end()),
        name_all_(targets_.contains(kAllLinear)) {}

  // Whether is_target() of one of them.
  bool name(const ParameterRow& row) const {
    const std::string linear = linear_of(row);
    if (name_all_ || linear.empty())
      return !linear.empty();
    std::string_view end = linear;
    while (!targets_.contains(end)) {
      const size_t dot = end.find('.');
      if (dot == std::string_view::npos)
        return false;
      end.remove_prefix(dot + 1);
    }
    return true;
  }

 private:
  std::set<std::string, std::less<>> targets_;
  bool name_all_;
};

// What both have of the weight's row.
ParameterRow part_of(const ParameterRow& weight, std::string_view kind) {
  ParameterRow row;
  row.name = linear_of(weight);
  row.name += kind;
  row.place = weight.place;
  row.layer = weight.layer;
  row.expert = weight.expert;
  row.stored_in = StoredIn::kAdapter;
  return row;
}

TensorCut cut_along(const ParameterRow& weight, int dim) {
  if (weight.cut.dim == kNotCut || weight.cut.dim == dim)
    return weight.cut;
  return {.unit = CutUnit::kWholeOnParts};
}

ParameterRow make_a(const ParameterRow& weight, int64_t rank) {
  ParameterRow row = part_of(weight, kLoraA);
  row.shape = {rank, weight.shape[1]};
  row.cut = cut_along(weight, 1);
  row.initialization = Initialization::kUniform;
  row.initial_bound = 1 / std::sqrt(static_cast<double>(weight.shape[1]));
  return row;
}

ParameterRow make_b(const ParameterRow& weight, int64_t rank) {
  ParameterRow row = part_of(weight, kLoraB);
  row.shape = {weight.shape[0], rank};
  row.cut = cut_along(weight, 0);
  row.initialization = Initialization::kZeros;
  return row;
}

ParameterRow make_magnitude(const ParameterRow& weight) {
  ParameterRow row = part_of(weight, kLoraMagnitude);
  row.shape = {weight.shape[0]};
  if (weight.cut.dim == 0)
    row.cut = weight.cut;
  row.initialization = Initialization::kRowNorms;
  row.role = ParameterRole::kNorm;
  row.decays = false;
  row.is_float32 = true;
  return row;
}

// Adds the adapters of one unit: for a group of linears first every A, which
// are one product where they are neighbours.
void add_adapters(
    const std::vector<ParameterRow>& weights,
    const AdapterOptions& adapter,
    std::vector<ParameterRow>& rows) {
  for (size_t begin = 0; begin < weights.size();) {
    size_t end = begin + 1;
    while (end < weights.size() && !weights[begin].group.empty() &&
           weights[end].group == weights[begin].group)
      ++end;
    for (size_t i = begin; i < end; ++i)
      rows.push_back(make_a(weights[i], adapter.rank));
    for (size_t i = begin; i < end; ++i)
      rows.push_back(make_b(weights[i], adapter.rank));
    for (size_t i = begin; adapter.use_dora && i < end; ++i)
      rows.push_back(make_magnitude(weights[i]));
    begin = end;
  }
}

}  // namespace

std::vector<ParameterRow> with_adapters(
    std::vector<ParameterRow> rows,
    const AdapterOptions& adapter) {
  const Targets targets(adapter);
  std::vector<ParameterRow> result;
  std::vector<ParameterRow> adapted;  // of the unit
  for (size_t i = 0; i < rows.size(); ++i) {
    ParameterRow& row = rows[i];
    row.trains = false;
    row.stored_in = StoredIn::kBaseModel;
    if (targets.name(row))
      adapted.push_back(row);
    const bool ends_unit =
        i + 1 == rows.size() || rows[i + 1].unit() != row.unit();
    result.push_back(std::move(row));
    if (ends_unit) {
      add_adapters(adapted, adapter, result);
      adapted.clear();
    }
  }
  return result;
}

std::string adapted_module(const std::string& name) {
  for (const std::string_view kind : {kLoraA, kLoraB, kLoraMagnitude}) {
    if (name.ends_with(kind))
      return name.substr(0, name.size() - kind.size());
  }
  return {};
}

std::string linear_without_magnitude(
    const ModelDescription& model,
    const AdapterOptions& adapter) {
  const Targets targets(adapter);
  for (const ParameterRow& row : list_parameters(model)) {
    if ((row.expert != kNoExpert || row.role == ParameterRole::kRouter) &&
        row.stored_in != StoredIn::kAdapter && targets.name(row))
      return linear_of(row);
  }
  return {};
}

void check_targets(
    const ModelDescription& model,
    const AdapterOptions& adapter,
    std::vector<std::string>& problems) {
  std::vector<std::string> modules;
  std::set<std::string> last_names;
  for (const ParameterRow& row : list_parameters(model)) {
    const std::string module = linear_of(row);
    if (module.empty() || row.stored_in == StoredIn::kAdapter)
      continue;
    modules.push_back(module);
    last_names.insert(module.substr(module.rfind('.') + 1));
  }
  const std::vector<std::string> names(last_names.begin(), last_names.end());
  for (const std::string& target : adapter.targets) {
    if (std::any_of(
            modules.begin(), modules.end(), [&](const std::string& linear) {
              return is_target(target, linear);
            }))
      continue;
    problems.push_back(fmt::format(
        "[config] /adapter/targets: \"{}\" is the end of no linear's name; the "
        "nearest is \"{}\", of {}, or \"{}\"",
        target,
        names.empty() ? "" : names[nearest_name(target, names)],
        fmt::join(names, ", "),
        kAllLinear));
  }
}

}  // namespace brigade

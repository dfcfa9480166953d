// Machine files: JSON with the members of Machine. The table below is the only
// list of fields that are numbers; parsing, printing and messages walk it.
// Lists of measurements are in machine_samples.h.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <variant>

#include "brigade/planner/machine.h"
#include "brigade/planner/machine_samples.h"

namespace brigade::planner {
namespace {

using Json = nlohmann::json;
using Problems = std::vector<std::string>;

enum class Given { kRequired, kOptional };

using Number = std::variant<double*, int64_t*, int*, std::optional<double>*>;

struct NumberField {
  const char* group;  // "", "device", "intra", "inter"
  const char* key;
  Given given;
  double low;
  double high;
  std::function<Number(Machine&)> place;

  std::optional<double> get(Machine& machine) const {
    return std::visit(
        [](auto* number) -> std::optional<double> { return *number; },
        place(machine));
  }
  void set(Machine& machine, double value) const {
    std::visit(
        [value](auto* number) {
          *number = static_cast<std::decay_t<decltype(*number)>>(value);
        },
        place(machine));
  }
};

constexpr double kMost = 1e18;

template <typename T>
NumberField of_machine(
    const char* key,
    T Machine::*member,
    double low,
    double high,
    Given given = Given::kOptional) {
  return {"", key, given, low, high, [member](Machine& machine) -> Number {
            return &(machine.*member);
          }};
}

template <typename T>
NumberField of_device(
    const char* key,
    T Device::*member,
    double low,
    double high,
    Given given = Given::kOptional) {
  return {
      "device", key, given, low, high, [member](Machine& machine) -> Number {
        return &(machine.device.*member);
      }};
}

template <size_t N>
void add_each(
    const char* const (&keys)[N],
    std::array<double, N> Device::*member,
    double low,
    double high,
    std::vector<NumberField>& fields) {
  for (size_t i = 0; i < N; ++i)
    fields.push_back(
        {"device",
         keys[i],
         Given::kOptional,
         low,
         high,
         [member, i](Machine& machine) -> Number {
           return &(machine.device.*member)[i];
         }});
}

void add_link(
    const char* group,
    Link Machine::*link,
    std::vector<NumberField>& fields) {
  const auto add = [&](const char* key,
                       double Link::*member,
                       double low,
                       double high,
                       Given given) {
    fields.push_back(
        {group, key, given, low, high, [link, member](Machine& m) -> Number {
           return &(m.*link.*member);
         }});
  };
  add("bytes_per_s", &Link::bytes_per_s, 1, kMost, Given::kRequired);
  add("latency_s", &Link::latency_s, 0, 10, Given::kRequired);
  add("efficiency", &Link::efficiency, 0.001, 1, Given::kOptional);
}

const std::vector<NumberField>& number_fields() {
  static const std::vector<NumberField> fields = [] {
    using D = Device;
    constexpr auto kRequired = Given::kRequired;
    constexpr auto kBackward = "elementwise_backward_bytes_per_s";
    std::vector<NumberField> all = {
        of_machine(
            "devices_per_node", &Machine::devices_per_node, 1, 1e6, kRequired),
        of_machine("cards_per_node", &Machine::cards_per_node, 1, 1e6),
        of_machine("contention", &Machine::contention, 0, 1),
        of_machine("device_spread", &Machine::device_spread, 0, 1),
        of_device("memory_bytes", &D::memory_bytes, 1, kMost, kRequired),
        of_device(
            "memory_bytes_per_s", &D::memory_bytes_per_s, 1, kMost, kRequired),
        of_device("compute_units", &D::compute_units, 1, 1e6, kRequired),
        of_device("sustained", &D::sustained, 0.01, 1),
        of_device("host_bytes_per_s", &D::host_bytes_per_s, 0, kMost),
        of_device("kernel_gap_s", &D::kernel_gap_s, 0, 1),
        of_device("reserved_bytes", &D::reserved_bytes, 0, kMost),
        // What a calibration sets.
        of_device(
            "elementwise_bytes_per_s", &D::elementwise_bytes_per_s, 0, kMost),
        of_device(kBackward, &D::elementwise_backward_bytes_per_s, 0, kMost),
        of_device("logits_bytes_per_s", &D::logits_bytes_per_s, 0, kMost),
        of_device("forward_factor", &D::forward_factor, 0.5, 2),
        of_device("backward_factor", &D::backward_factor, 0.5, 2),
        of_device("recompute_factor", &D::recompute_factor, 0.5, 2),
        of_device("weight_element_s", &D::weight_element_s, 0, 1)};
    add_each(
        {"fp32_flops", "bf16_flops", "fp8_flops", "mxfp8_flops", "fp4_flops"},
        &D::peak_flops,
        0,
        kMost,
        all);
    add_each(
        {"flash1_fraction", "flash2_fraction", "flash3_fraction"},
        &D::attention,
        0.001,
        1,
        all);
    add_link("intra", &Machine::intra, all);
    add_link("inter", &Machine::inter, all);
    return all;
  }();
  return fields;
}

std::string path_of(const NumberField& field) {
  return *field.group == '\0' ? field.key
                              : fmt::format("{}.{}", field.group, field.key);
}

void read_number(
    const NumberField& field,
    const Json& json,
    const std::string& pointer,
    Machine& machine,
    Problems& problems) {
  const Json* group = &json;
  std::string where = pointer;
  if (*field.group != '\0') {
    const auto found = json.find(field.group);
    if (found == json.end() || !found->is_object())
      return;  // reported once, by check_groups()
    group = &*found;
    where += fmt::format("/{}", field.group);
  }
  const auto found = group->find(field.key);
  if (found == group->end()) {
    if (field.given == Given::kRequired)
      problems.push_back(fmt::format("{}/{}: is missing", where, field.key));
    return;
  }
  const double value = found->is_number() ? found->get<double>() : NAN;
  if (!(value >= field.low && value <= field.high)) {
    problems.push_back(fmt::format(
        "{}/{}: expected a number from {} to {}, not {}",
        where,
        field.key,
        field.low,
        field.high,
        found->dump().substr(0, 40)));
    return;
  }
  field.set(machine, value);
}

void check_keys(
    const Json& object,
    const std::string& group,
    const std::string& pointer,
    Problems& problems) {
  std::vector<std::string> known;
  if (group.empty())
    known = {"name", "device", "intra", "inter", "collectives"};
  if (group == "device") {
    known = {"name"};
    for (size_t dtype = 0; dtype < kProductDtypes; ++dtype)
      known.push_back(rates_key(dtype));
  }
  for (const NumberField& field : number_fields()) {
    if (group == field.group)
      known.emplace_back(field.key);
  }
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      problems.push_back(fmt::format(
          "{}/{}: unknown key; known are {}",
          pointer,
          key,
          fmt::join(known, ", ")));
  }
}

void check_groups(
    const Json& json,
    const std::string& pointer,
    Problems& problems) {
  check_keys(json, "", pointer, problems);
  for (const char* group : {"device", "intra", "inter"}) {
    const auto found = json.find(group);
    if (found == json.end() || !found->is_object())
      problems.push_back(fmt::format(
          "{}/{}: expected an object{}",
          pointer,
          group,
          found == json.end() ? ", but it is missing" : ""));
    else
      check_keys(*found, group, fmt::format("{}/{}", pointer, group), problems);
  }
}

std::string
text_of(const Json& json, const std::string& pointer, Problems& problems) {
  const auto found = json.find("name");
  if (found == json.end())
    return "";
  if (!found->is_string()) {
    problems.push_back(fmt::format(
        "{}/name: expected a string, not {}",
        pointer,
        found->dump().substr(0, 40)));
    return "";
  }
  return found->get<std::string>();
}

}  // namespace

Machine parse_machine(
    const Json& json,
    const std::string& pointer,
    Problems& problems) {
  Machine machine;
  if (!json.is_object()) {
    problems.push_back(fmt::format(
        "{}/: a machine file is an object with {}", pointer, machine_fields()));
    return machine;
  }
  check_groups(json, pointer, problems);
  machine.name = text_of(json, pointer, problems);
  if (const auto device = json.find("device");
      device != json.end() && device->is_object()) {
    machine.device.name = text_of(*device, pointer + "/device", problems);
    read_rates(*device, pointer + "/device", machine, problems);
  }
  read_collectives(json, pointer, machine, problems);
  for (const NumberField& field : number_fields())
    read_number(field, json, pointer, machine, problems);
  const auto& peaks = machine.device.peak_flops;
  if (problems.empty() &&
      std::all_of(peaks.begin(), peaks.end(), [](double f) { return f == 0; }))
    problems.push_back(fmt::format(
        "{}/device: no peak is given; set bf16_flops, fp32_flops or another",
        pointer));
  return machine;
}

Json to_json(const Machine& machine) {
  Json json = {{"name", machine.name}};
  Machine copy = machine;
  json["device"]["name"] = machine.device.name;
  for (const NumberField& field : number_fields()) {
    const std::optional<double> value = field.get(copy);
    if (!value)
      continue;
    Json& number = (*field.group == '\0' ? json : json[field.group])[field.key];
    number = *value;
    if (*value == std::floor(*value) && *value < 9e15)
      number = static_cast<int64_t>(*value);
  }
  write_rates(machine, json);
  write_collectives(machine, json);
  return json;
}

std::string machine_fields() {
  std::vector<std::string> names = {"name"};
  for (const NumberField& field : number_fields())
    names.push_back(path_of(field));
  for (size_t dtype = 0; dtype < kProductDtypes; ++dtype)
    names.push_back("device." + rates_key(dtype));
  names.emplace_back("collectives");
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace brigade::planner

// Machine files: JSON with the members of Machine. The table below is the only
// list of fields that are numbers; parsing, printing and messages walk it.
// Lists of measurements are in machine_samples.h.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "brigade/planner/machine.h"
#include "brigade/planner/machine_samples.h"

namespace brigade::planner {
namespace {

using Json = nlohmann::json;
using Problems = std::vector<std::string>;

enum class Given { kRequired, kOptional };

struct NumberField {
  const char* group;  // "", "device", "intra", "inter"
  const char* key;
  Given given;
  double low;
  double high;
  std::function<double(const Machine&)> get;
  std::function<void(Machine&, double)> set;
};

constexpr double kMost = 1e18;

std::vector<NumberField> device_fields() {
  return {
      {"device",
       "memory_bytes",
       Given::kRequired,
       1,
       kMost,
       [](const Machine& m) { return double(m.device.memory_bytes); },
       [](Machine& m, double v) { m.device.memory_bytes = int64_t(v); }},
      {"device",
       "memory_bytes_per_s",
       Given::kRequired,
       1,
       kMost,
       [](const Machine& m) { return m.device.memory_bytes_per_s; },
       [](Machine& m, double v) { m.device.memory_bytes_per_s = v; }},
      {"device",
       "compute_units",
       Given::kRequired,
       1,
       1e6,
       [](const Machine& m) { return double(m.device.compute_units); },
       [](Machine& m, double v) { m.device.compute_units = int(v); }},
      {"device",
       "sustained",
       Given::kOptional,
       0.01,
       1,
       [](const Machine& m) { return m.device.sustained; },
       [](Machine& m, double v) { m.device.sustained = v; }},
      {"device",
       "host_bytes_per_s",
       Given::kOptional,
       0,
       kMost,
       [](const Machine& m) { return m.device.host_bytes_per_s; },
       [](Machine& m, double v) { m.device.host_bytes_per_s = v; }},
      {"device",
       "kernel_gap_s",
       Given::kOptional,
       0,
       1,
       [](const Machine& m) { return m.device.kernel_gap_s; },
       [](Machine& m, double v) { m.device.kernel_gap_s = v; }},
      {"device",
       "reserved_bytes",
       Given::kOptional,
       0,
       kMost,
       [](const Machine& m) { return double(m.device.reserved_bytes); },
       [](Machine& m, double v) { m.device.reserved_bytes = int64_t(v); }}};
}

// Device's members that a calibration sets.
void add_measured_parts(std::vector<NumberField>& fields) {
  const std::vector<NumberField> measured = {
      {"device",
       "elementwise_bytes_per_s",
       Given::kOptional,
       0,
       kMost,
       [](const Machine& m) { return m.device.elementwise_bytes_per_s; },
       [](Machine& m, double v) { m.device.elementwise_bytes_per_s = v; }},
      {"device",
       "elementwise_backward_bytes_per_s",
       Given::kOptional,
       0,
       kMost,
       [](const Machine& m) {
         return m.device.elementwise_backward_bytes_per_s;
       },
       [](Machine& m, double v) {
         m.device.elementwise_backward_bytes_per_s = v;
       }},
      {"device",
       "logits_bytes_per_s",
       Given::kOptional,
       0,
       kMost,
       [](const Machine& m) { return m.device.logits_bytes_per_s; },
       [](Machine& m, double v) { m.device.logits_bytes_per_s = v; }},
      {"device",
       "forward_factor",
       Given::kOptional,
       0.5,
       2,
       [](const Machine& m) { return m.device.forward_factor; },
       [](Machine& m, double v) { m.device.forward_factor = v; }},
      {"device",
       "backward_factor",
       Given::kOptional,
       0.5,
       2,
       [](const Machine& m) { return m.device.backward_factor; },
       [](Machine& m, double v) { m.device.backward_factor = v; }},
      {"device",
       "recompute_factor",
       Given::kOptional,
       0.5,
       2,
       [](const Machine& m) { return m.device.recompute_factor; },
       [](Machine& m, double v) { m.device.recompute_factor = v; }},
      {"device",
       "weight_element_s",
       Given::kOptional,
       0,
       1,
       [](const Machine& m) { return m.device.weight_element_s; },
       [](Machine& m, double v) { m.device.weight_element_s = v; }}};
  fields.insert(fields.end(), measured.begin(), measured.end());
}

void add_rates_of_products(std::vector<NumberField>& fields) {
  static const char* const kPeaks[] = {
      "fp32_flops", "bf16_flops", "fp8_flops", "mxfp8_flops", "fp4_flops"};
  for (size_t i = 0; i < kProductDtypes; ++i)
    fields.push_back(
        {"device",
         kPeaks[i],
         Given::kOptional,
         0,
         kMost,
         [i](const Machine& m) { return m.device.peak_flops[i]; },
         [i](Machine& m, double v) { m.device.peak_flops[i] = v; }});
}

void add_rates_of_attention(std::vector<NumberField>& fields) {
  static const char* const kAttention[] = {
      "flash1_fraction", "flash2_fraction", "flash3_fraction"};
  for (size_t i = 0; i < kFlashKernels; ++i)
    fields.push_back(
        {"device",
         kAttention[i],
         Given::kOptional,
         0.001,
         1,
         [i](const Machine& m) { return m.device.attention[i]; },
         [i](Machine& m, double v) { m.device.attention[i] = v; }});
}

void add_link(
    const char* group,
    Link Machine::*link,
    std::vector<NumberField>& fields) {
  fields.push_back(
      {group,
       "bytes_per_s",
       Given::kRequired,
       1,
       kMost,
       [link](const Machine& m) { return (m.*link).bytes_per_s; },
       [link](Machine& m, double v) { (m.*link).bytes_per_s = v; }});
  fields.push_back(
      {group,
       "latency_s",
       Given::kRequired,
       0,
       10,
       [link](const Machine& m) { return (m.*link).latency_s; },
       [link](Machine& m, double v) { (m.*link).latency_s = v; }});
  fields.push_back(
      {group,
       "efficiency",
       Given::kOptional,
       0.001,
       1,
       [link](const Machine& m) { return (m.*link).efficiency; },
       [link](Machine& m, double v) { (m.*link).efficiency = v; }});
}

const std::vector<NumberField>& number_fields() {
  static const std::vector<NumberField> fields = [] {
    std::vector<NumberField> all = device_fields();
    add_measured_parts(all);
    add_rates_of_products(all);
    add_rates_of_attention(all);
    all.insert(
        all.begin(),
        {"",
         "devices_per_node",
         Given::kRequired,
         1,
         1e6,
         [](const Machine& m) { return double(m.devices_per_node); },
         [](Machine& m, double v) { m.devices_per_node = int(v); }});
    all.insert(
        all.begin() + 1,
        {"",
         "cards_per_node",
         Given::kOptional,
         1,
         1e6,
         [](const Machine& m) { return double(m.cards_per_node); },
         [](Machine& m, double v) { m.cards_per_node = int(v); }});
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
    known = {
        "name",
        "device",
        "intra",
        "inter",
        "contention",
        "device_spread",
        "collectives"};
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

std::optional<double> read_part(
    const Json& json,
    const char* key,
    const std::string& pointer,
    Problems& problems) {
  const auto found = json.find(key);
  if (found == json.end())
    return std::nullopt;
  const double value = found->is_number() ? found->get<double>() : NAN;
  if (value >= 0 && value <= 1)
    return value;
  problems.push_back(fmt::format(
      "{}/{}: expected a number from 0 to 1, not {}",
      pointer,
      key,
      found->dump().substr(0, 40)));
  return std::nullopt;
}

}  // namespace

Machine parse_machine(
    const Json& json,
    const std::string& pointer,
    Problems& problems) {
  Machine machine;
  if (!json.is_object()) {
    problems.push_back(fmt::format(
        "{}: a machine file is an object with {}", pointer, machine_fields()));
    return machine;
  }
  check_groups(json, pointer, problems);
  machine.name = text_of(json, pointer, problems);
  if (const auto device = json.find("device");
      device != json.end() && device->is_object()) {
    machine.device.name = text_of(*device, pointer + "/device", problems);
    read_rates(*device, pointer + "/device", machine, problems);
  }
  machine.contention = read_part(json, "contention", pointer, problems);
  machine.device_spread = read_part(json, "device_spread", pointer, problems);
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
  json["device"]["name"] = machine.device.name;
  for (const NumberField& field : number_fields()) {
    Json& group = *field.group == '\0' ? json : json[field.group];
    const double value = field.get(machine);
    if (value == std::floor(value) && value < 9e15)
      group[field.key] = static_cast<int64_t>(value);
    else
      group[field.key] = value;
  }
  if (machine.contention)
    json["contention"] = *machine.contention;
  if (machine.device_spread)
    json["device_spread"] = *machine.device_spread;
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
  names.emplace_back("contention");
  names.emplace_back("device_spread");
  names.emplace_back("collectives");
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace brigade::planner

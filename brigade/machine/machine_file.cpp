// Machine files: JSON with the members of Machine. visit_numbers() is the only
// list of fields that are numbers; parsing, printing and messages walk it. What
// `brigade plan --calibrate` measured is in lists besides:
//
//   "bf16_rates": [[64, 1e11], [1024, 3e11]]: smallest dimension and FLOP/s
//   "collectives": [["all_reduce", 2, 65536, 0.0005]]: name, ranks, bytes,
//     seconds
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "brigade/machine/machine.h"

namespace brigade::machine {
namespace {

using Json = nlohmann::json;
using Problems = std::vector<std::string>;

constexpr double kMost = 1e18;

enum class Given { kRequired, kOptional };

struct NumberField {
  const char* group;  // "", "device", "intra", "inter"
  std::string key;
  double low;
  double high;
  Given given;
};

// Calls visit(field, number) for each number of a machine.
template <typename M, typename Visit>
void visit_numbers(M& machine, const Visit& visit) {
  const auto in = [&](const char* group) {
    return [&visit, group](
               const std::string& key,
               auto& number,
               double low,
               double high,
               Given given = Given::kOptional) {
      visit(NumberField{group, key, low, high, given}, number);
    };
  };
  constexpr auto kRequired = Given::kRequired;
  const auto of_machine = in("");
  of_machine("devices_per_node", machine.devices_per_node, 1, 1e6, kRequired);
  of_machine("cards_per_node", machine.cards_per_node, 1, 1e6);
  of_machine("contention", machine.contention, 0, 1);
  of_machine("device_spread", machine.device_spread, 0, 1);
  auto& d = machine.device;
  const auto of_device = in("device");
  of_device("memory_bytes", d.memory_bytes, 1, kMost, kRequired);
  of_device("memory_bytes_per_s", d.memory_bytes_per_s, 1, kMost, kRequired);
  of_device("compute_units", d.compute_units, 1, 1e6, kRequired);
  of_device("sustained", d.sustained, 0.01, 1);
  of_device("host_bytes_per_s", d.host_bytes_per_s, 0, kMost);
  of_device("kernel_gap_s", d.kernel_gap_s, 0, 1);
  of_device("reserved_bytes", d.reserved_bytes, 0, kMost);
  // What a calibration sets.
  of_device("elementwise_bytes_per_s", d.elementwise_bytes_per_s, 0, kMost);
  auto& backward = d.elementwise_backward_bytes_per_s;
  of_device("elementwise_backward_bytes_per_s", backward, 0, kMost);
  of_device("logits_bytes_per_s", d.logits_bytes_per_s, 0, kMost);
  of_device("forward_factor", d.forward_factor, 0.5, 2);
  of_device("backward_factor", d.backward_factor, 0.5, 2);
  of_device("recompute_factor", d.recompute_factor, 0.5, 2);
  of_device("weight_element_s", d.weight_element_s, 0, 1);
  for (size_t i = 0; i < kProductDtypes; ++i)
    of_device(
        fmt::format("{}_flops", to_string(static_cast<ProductDtype>(i))),
        d.peak_flops[i],
        0,
        kMost);
  for (size_t i = 0; i < kFlashKernels; ++i)
    of_device(fmt::format("flash{}_fraction", i + 1), d.attention[i], 0.001, 1);
  const auto add_link = [&](const auto& of_link, auto& link) {
    of_link("bytes_per_s", link.bytes_per_s, 1, kMost, kRequired);
    of_link("latency_s", link.latency_s, 0, 10, kRequired);
    of_link("efficiency", link.efficiency, 0.001, 1);
  };
  add_link(in("intra"), machine.intra);
  add_link(in("inter"), machine.inter);
}

std::vector<NumberField> number_fields() {
  std::vector<NumberField> fields;
  const Machine any;
  visit_numbers(any, [&](const NumberField& field, const auto& /*number*/) {
    fields.push_back(field);
  });
  return fields;
}

std::string rates_key(size_t dtype) {
  return fmt::format("{}_rates", to_string(static_cast<ProductDtype>(dtype)));
}

std::string shortened(const Json& json) {
  return json.dump().substr(0, 40);
}

// The member of that name, where it is an object; else null.
const Json* find_object(const Json& json, const char* group) {
  const auto found = json.find(group);
  return found != json.end() && found->is_object() ? &*found : nullptr;
}

template <typename T>
void read_number(
    const NumberField& field,
    const Json& json,
    const std::string& pointer,
    T& number,
    Problems& problems) {
  const bool is_in_group = *field.group != '\0';
  const Json* group = is_in_group ? find_object(json, field.group) : &json;
  if (group == nullptr)
    return;  // reported once, by check_groups()
  const std::string where =
      pointer + (is_in_group ? fmt::format("/{}", field.group) : "");
  const auto found = group->find(field.key);
  if (found == group->end()) {
    if (field.given == Given::kRequired)
      problems.push_back(fmt::format("{}/{}: is missing", where, field.key));
    return;
  }
  const double value = found->is_number() ? found->get<double>() : NAN;
  if (value >= field.low && value <= field.high)
    number = static_cast<T>(value);
  else
    problems.push_back(fmt::format(
        "{}/{}: expected a number from {} to {}, not {}",
        where,
        field.key,
        field.low,
        field.high,
        shortened(*found)));
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
      known.push_back(field.key);
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
    const std::string where = fmt::format("{}/{}", pointer, group);
    if (const Json* found = find_object(json, group))
      check_keys(*found, group, where, problems);
    else
      problems.push_back(fmt::format(
          "{}: expected an object{}",
          where,
          json.contains(group) ? "" : ", but it is missing"));
  }
}

std::string
text_of(const Json& json, const std::string& pointer, Problems& problems) {
  const auto found = json.find("name");
  if (found == json.end())
    return "";
  if (found->is_string())
    return found->get<std::string>();
  problems.push_back(fmt::format(
      "{}/name: expected a string, not {}", pointer, shortened(*found)));
  return "";
}

bool is_number(const Json& value, double low, double high) {
  return value.is_number() && value.get<double>() >= low &&
         value.get<double>() <= high;
}

bool is_whole(const Json& value, double low, double high) {
  return value.is_number_integer() && is_number(value, low, high);
}

// Whether each element of a list was added by add(element).
template <typename Add>
bool add_all(const Json& list, const Add& add) {
  return list.is_array() && std::all_of(list.begin(), list.end(), add);
}

void read_rates(
    const Json& device,
    const std::string& pointer,
    Machine& machine,
    Problems& problems) {
  constexpr double kLargest = 1 << 24;
  for (size_t dtype = 0; dtype < kProductDtypes; ++dtype) {
    const auto found = device.find(rates_key(dtype));
    if (found == device.end())
      continue;
    std::vector<ProductRate>& rates = machine.device.product_rates[dtype];
    const auto add = [&](const Json& pair) {
      if (!pair.is_array() || pair.size() != 2 ||
          !is_whole(pair[0], 1, kLargest) || !is_number(pair[1], 1, kMost))
        return false;
      const int64_t before = rates.empty() ? 0 : rates.back().size;
      rates.push_back({pair[0].get<int64_t>(), pair[1].get<double>()});
      return rates.back().size > before;
    };
    if (found->empty() || !add_all(*found, add))
      problems.push_back(fmt::format(
          "{}/{}: expected pairs of a product's smallest dimension, "
          "ascending, and its FLOP/s, not {}",
          pointer,
          rates_key(dtype),
          shortened(*found)));
  }
}

void read_collectives(
    const Json& json,
    const std::string& pointer,
    Machine& machine,
    Problems& problems) {
  const auto found = json.find("collectives");
  if (found == json.end())
    return;
  const auto add = [&](const Json& values) {
    if (!values.is_array() || values.size() != 4 || !values[0].is_string() ||
        !is_whole(values[1], 2, 1e6) || !is_whole(values[2], 1, kMost) ||
        !values[3].is_number() ||
        !(values[3].get<double>() > 0 && values[3].get<double>() < 1e6))
      return false;
    const auto collective =
        find_choice<Collective>(values[0].get<std::string>());
    if (!collective)
      return false;
    const CollectiveSample sample = {
        *collective,
        values[1].get<int>(),
        values[2].get<int64_t>(),
        values[3].get<double>()};
    const bool is_ascending = std::ranges::none_of(
        machine.collectives, [&](const CollectiveSample& before) {
          return before.collective == sample.collective &&
                 before.ranks == sample.ranks && before.bytes >= sample.bytes;
        });
    machine.collectives.push_back(sample);
    return is_ascending;
  };
  if (!add_all(*found, add))
    problems.push_back(fmt::format(
        "{}/collectives: expected lists of a collective ({}), its ranks, its "
        "bytes, ascending, and seconds, not {}",
        pointer,
        fmt::join(choice_texts<Collective>(), ", "),
        shortened(*found)));
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
  if (const Json* device = find_object(json, "device")) {
    machine.device.name = text_of(*device, pointer + "/device", problems);
    read_rates(*device, pointer + "/device", machine, problems);
  }
  read_collectives(json, pointer, machine, problems);
  visit_numbers(machine, [&](const NumberField& field, auto& number) {
    read_number(field, json, pointer, number, problems);
  });
  const auto& peaks = machine.device.peak_flops;
  if (problems.empty() && *std::max_element(peaks.begin(), peaks.end()) == 0)
    problems.push_back(fmt::format(
        "{}/device: no peak is given; set bf16_flops, fp32_flops or another",
        pointer));
  return machine;
}

Json to_json(const Machine& machine) {
  Json json = {{"name", machine.name}};
  json["device"]["name"] = machine.device.name;
  visit_numbers(machine, [&](const NumberField& field, const auto& number) {
    const std::optional<double> value = number;
    if (!value)
      return;
    Json& place = (*field.group == '\0' ? json : json[field.group])[field.key];
    place = *value;
    if (*value == std::floor(*value) && *value < 9e15)
      place = static_cast<int64_t>(*value);
  });
  for (size_t dtype = 0; dtype < kProductDtypes; ++dtype) {
    for (const ProductRate& rate : machine.device.product_rates[dtype])
      json["device"][rates_key(dtype)].push_back({rate.size, rate.flops_per_s});
  }
  for (const CollectiveSample& sample : machine.collectives)
    json["collectives"].push_back(
        {to_string(sample.collective),
         sample.ranks,
         sample.bytes,
         sample.seconds});
  return json;
}

std::string machine_fields() {
  std::vector<std::string> names = {"name"};
  for (const NumberField& field : number_fields())
    names.push_back(
        (*field.group == '\0' ? "" : std::string(field.group) + ".") +
        field.key);
  for (size_t dtype = 0; dtype < kProductDtypes; ++dtype)
    names.push_back("device." + rates_key(dtype));
  names.emplace_back("collectives");
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace brigade::machine

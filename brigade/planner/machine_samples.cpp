#include "brigade/planner/machine_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace brigade::planner {
namespace {

using Json = nlohmann::json;
using Problems = std::vector<std::string>;

constexpr double kMostMeasured = 1e18;

}  // namespace

std::string rates_key(size_t dtype) {
  return fmt::format("{}_rates", to_string(static_cast<ProductDtype>(dtype)));
}

void read_rates(
    const Json& device,
    const std::string& pointer,
    Machine& machine,
    Problems& problems) {
  constexpr double kLargest = 1 << 24;
  const auto is_rate = [&](const Json& pair) {
    return pair.is_array() && pair.size() == 2 && pair[0].is_number_integer() &&
           pair[0].get<double>() >= 1 && pair[0].get<double>() <= kLargest &&
           pair[1].is_number() && pair[1].get<double>() >= 1 &&
           pair[1].get<double>() <= kMostMeasured;
  };
  for (size_t dtype = 0; dtype < kProductDtypes; ++dtype) {
    const auto found = device.find(rates_key(dtype));
    if (found == device.end())
      continue;
    std::vector<ProductRate>& rates = machine.device.product_rates[dtype];
    bool is_valid = found->is_array() && !found->empty();
    for (size_t i = 0; is_valid && i < found->size(); ++i) {
      const Json& pair = (*found)[i];
      is_valid = is_rate(pair) &&
                 (rates.empty() || pair[0].get<int64_t>() > rates.back().size);
      if (is_valid)
        rates.push_back({pair[0].get<int64_t>(), pair[1].get<double>()});
    }
    if (!is_valid)
      problems.push_back(fmt::format(
          "{}/{}: expected pairs of a product's smallest dimension, "
          "ascending, and its FLOP/s, not {}",
          pointer,
          rates_key(dtype),
          found->dump().substr(0, 40)));
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
  const auto read = [&](const Json& values) {
    const auto is_count = [](const Json& value, double least) {
      return value.is_number_integer() && value.get<double>() >= least &&
             value.get<double>() <= kMostMeasured;
    };
    if (!values.is_array() || values.size() != 4 || !values[0].is_string() ||
        !is_count(values[1], 2) || values[1].get<double>() > 1e6 ||
        !is_count(values[2], 1) || !values[3].is_number() ||
        !(values[3].get<double>() > 0 && values[3].get<double>() < 1e6))
      return false;
    for (int i = 0; i < kCollectives; ++i) {
      const auto collective = static_cast<Collective>(i);
      if (values[0].get<std::string>() != to_string(collective))
        continue;
      const CollectiveSample sample = {
          collective,
          values[1].get<int>(),
          values[2].get<int64_t>(),
          values[3].get<double>()};
      const bool is_ascending = std::all_of(
          machine.collectives.begin(),
          machine.collectives.end(),
          [&](const CollectiveSample& before) {
            return before.collective != sample.collective ||
                   before.ranks != sample.ranks || before.bytes < sample.bytes;
          });
      if (is_ascending)
        machine.collectives.push_back(sample);
      return is_ascending;
    }
    return false;
  };
  if (!found->is_array() || !std::all_of(found->begin(), found->end(), read))
    problems.push_back(fmt::format(
        "{}/collectives: expected lists of a collective (all_reduce, "
        "reduce_scatter, all_gather, exchange), its ranks, its bytes, "
        "ascending, and seconds, not {}",
        pointer,
        found->dump().substr(0, 40)));
}

void write_rates(const Machine& machine, Json& file) {
  for (size_t dtype = 0; dtype < kProductDtypes; ++dtype) {
    for (const ProductRate& rate : machine.device.product_rates[dtype])
      file["device"][rates_key(dtype)].push_back({rate.size, rate.flops_per_s});
  }
}

void write_collectives(const Machine& machine, Json& file) {
  for (const CollectiveSample& sample : machine.collectives)
    file["collectives"].push_back(
        {to_string(sample.collective),
         sample.ranks,
         sample.bytes,
         sample.seconds});
}

}  // namespace brigade::planner

#include "brigade/data/mixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "brigade/base/check.h"
#include "brigade/base/error.h"

namespace brigade {
namespace {

void check_weights(const std::vector<double>& weights) {
  std::vector<std::string> problems;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(std::isfinite(weights[i]) && weights[i] > 0)) {
      problems.push_back(fmt::format(
          "/dataset/mixture/{}/weight: {} is not a positive number",
          i,
          weights[i]));
    }
  }
  if (!problems.empty())
    throw ConfigError(problems);
}

void check_quotas(
    const std::vector<uint64_t>& quotas,
    const std::vector<double>& weights) {
  for (size_t i = 0; i < quotas.size(); ++i) {
    if (quotas[i] == 0) {
      throw ConfigError(fmt::format(
          "/dataset/mixture/{}/weight: {} is less than 1/{} of the mixture, "
          "the smallest share: leave the part out or raise its weight",
          i,
          weights[i],
          MixtureOrder::kPeriod));
    }
  }
}

}  // namespace

// By largest remainder.
std::vector<uint64_t> mixture_quotas(const std::vector<double>& weights) {
  // Divided by the largest first, so that the sum stays finite.
  const double largest = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (const double weight : weights)
    sum += weight / largest;
  std::vector<uint64_t> quotas;
  std::vector<std::pair<double, size_t>> remainders;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double exact =
        weights[i] / largest / sum * static_cast<double>(MixtureOrder::kPeriod);
    quotas.push_back(static_cast<uint64_t>(exact));
    remainders.emplace_back(std::floor(exact) - exact, i);
  }
  std::sort(remainders.begin(), remainders.end());
  uint64_t rest = MixtureOrder::kPeriod -
                  std::accumulate(quotas.begin(), quotas.end(), uint64_t{0});
  for (size_t i = 0; rest > 0; i = (i + 1) % remainders.size(), --rest)
    ++quotas[remainders[i].second];
  return quotas;
}

MixtureOrder::MixtureOrder(const std::vector<double>& weights) {
  check_weights(weights);
  quotas_ = mixture_quotas(weights);
  check_quotas(quotas_, weights);
  table_.reserve(kPeriod);
  std::vector<uint32_t> taken(quotas_.size(), 0);
  for (uint64_t position = 0; position < kPeriod; ++position) {
    // The source with the largest deficit, quota * (position + 1) / kPeriod -
    // taken, in whole numbers; the first of equals.
    size_t next = 0;
    int64_t largest = std::numeric_limits<int64_t>::min();
    for (size_t i = 0; i < quotas_.size(); ++i) {
      const int64_t deficit =
          static_cast<int64_t>(quotas_[i] * (position + 1)) -
          static_cast<int64_t>(taken[i] * kPeriod);
      if (taken[i] < quotas_[i] && deficit > largest) {
        largest = deficit;
        next = i;
      }
    }
    table_.push_back({static_cast<uint32_t>(next), taken[next]++});
  }
}

MixtureOrder::Place MixtureOrder::operator()(uint64_t sample) const {
  const Entry entry = table_[sample % kPeriod];
  return {entry.source, sample / kPeriod * quotas_[entry.source] + entry.rank};
}

MixtureSource::MixtureSource(
    std::vector<std::shared_ptr<const SampleSource>> sources,
    const std::vector<double>& weights)
    : sources_(std::move(sources)), order_(weights) {
  BRIGADE_ASSERT(!sources_.empty() && sources_.size() == weights.size());
  for (const auto& source : sources_)
    BRIGADE_ASSERT(source->seq_length() == seq_length());
}

uint64_t MixtureSource::samples_per_epoch() const {
  double samples = 0;
  for (uint32_t i = 0; i < sources_.size(); ++i) {
    samples = std::max(
        samples,
        static_cast<double>(sources_[i]->samples_per_epoch()) *
            static_cast<double>(MixtureOrder::kPeriod) /
            static_cast<double>(order_.quota(i)));
  }
  return static_cast<uint64_t>(std::ceil(samples));
}

void MixtureSource::read(uint64_t sample, Window& window) const {
  const auto place = order_(sample);
  sources_[place.source]->read(place.sample, window);
}

}  // namespace brigade

#include "brigade/data/mixture_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/error.h"

namespace brigade {

double weight_at(const WeightTable& table, uint64_t sample) {
  BRIGADE_ASSERT(!table.empty());
  const auto next = std::upper_bound(
      table.begin(),
      table.end(),
      sample,
      [](uint64_t value, const WeightPoint& point) {
        return value < point.sample;
      });
  if (next == table.begin())
    return table.front().weight;
  const WeightPoint& before = *(next - 1);
  if (next == table.end())
    return before.weight;
  const double way = static_cast<double>(sample - before.sample) /
                     static_cast<double>(next->sample - before.sample);
  return before.weight + (next->weight - before.weight) * way;
}

MixtureSchedule::MixtureSchedule(std::vector<WeightTable> tables)
    : tables_(std::move(tables)) {
  BRIGADE_ASSERT(!tables_.empty());
  // Where weights are linear, a sum that is zero somewhere is zero at a point.
  points_ = {0};
  for (const WeightTable& table : tables_) {
    for (const WeightPoint& point : table)
      points_.push_back(point.sample);
  }
  std::sort(points_.begin(), points_.end());
  for (const uint64_t sample : points_) {
    const bool has_weight = std::any_of(
        tables_.begin(), tables_.end(), [&](const WeightTable& table) {
          return weight_at(table, sample) > 0;
        });
    if (!has_weight)
      throw ConfigError(fmt::format(
          "[config] /dataset/mixture: all weights are 0 at sequence {} of the "
          "run: at least one must be above it at any time",
          sample));
  }
  const State zero{
      std::vector<int64_t>(tables_.size(), 0),
      std::vector<uint64_t>(tables_.size(), 0)};
  states_.push_back(zero);
}

std::vector<int64_t> MixtureSchedule::shares_at(uint64_t sample) const {
  std::vector<double> weights;
  for (const WeightTable& table : tables_)
    weights.push_back(weight_at(table, sample));
  const std::vector<uint64_t> quotas = mixture_quotas(weights);
  return {quotas.begin(), quotas.end()};
}

// The source of the next sample.
uint32_t MixtureSchedule::advance(
    State& state,
    const std::vector<int64_t>& shares) const {
  size_t next = shares.size();
  for (size_t i = 0; i < shares.size(); ++i) {
    state.credits[i] += shares[i];
    const bool is_further =
        next == shares.size() || state.credits[i] > state.credits[next];
    if (shares[i] > 0 && is_further)
      next = i;
  }
  state.credits[next] -= static_cast<int64_t>(MixtureOrder::kPeriod);
  return static_cast<uint32_t>(next);
}

// From sample `begin`, which the state is in front of, to `end`. `begin` is the
// first of a chunk.
void MixtureSchedule::walk(
    uint64_t begin,
    uint64_t end,
    State& state,
    std::vector<MixtureOrder::Place>* places) const {
  std::vector<int64_t> shares;
  auto next_point = std::lower_bound(points_.begin(), points_.end(), begin);
  for (uint64_t sample = begin; sample < end; ++sample) {
    const bool is_point = next_point != points_.end() && *next_point == sample;
    if (sample % kShareSamples == 0 || is_point)
      shares = shares_at(sample);
    while (next_point != points_.end() && *next_point == sample)
      ++next_point;
    const uint32_t source = advance(state, shares);
    if (places != nullptr)
      places->push_back({source, state.counts[source]});
    ++state.counts[source];
  }
}

// Call with mutex_ held.
const MixtureSchedule::State& MixtureSchedule::state_of(uint64_t chunk) const {
  while (states_.size() <= chunk) {
    State state = states_.back();
    const uint64_t begin = (states_.size() - 1) * kChunkSamples;
    walk(begin, begin + kChunkSamples, state, nullptr);
    states_.push_back(std::move(state));
  }
  return states_[chunk];
}

MixtureOrder::Place MixtureSchedule::operator()(uint64_t sample) const {
  const uint64_t number = sample / kChunkSamples;
  const std::lock_guard lock(mutex_);
  if (!current_ || current_->number != number) {
    auto chunk = std::make_shared<Chunk>();
    chunk->number = number;
    State state = state_of(number);
    const uint64_t begin = number * kChunkSamples;
    walk(begin, begin + kChunkSamples, state, &chunk->places);
    current_ = std::move(chunk);
  }
  return current_->places[sample % kChunkSamples];
}

std::vector<uint64_t> MixtureSchedule::counts(uint64_t samples) const {
  if (tables_.size() == 1)
    return {samples};
  const uint64_t chunk = samples / kChunkSamples;
  const std::lock_guard lock(mutex_);
  State state = state_of(chunk);
  walk(chunk * kChunkSamples, samples, state, nullptr);
  return state.counts;
}

ScheduledMixtureSource::ScheduledMixtureSource(
    std::vector<std::shared_ptr<const SampleSource>> sources,
    std::shared_ptr<const MixtureSchedule> schedule)
    : sources_(std::move(sources)), schedule_(std::move(schedule)) {
  BRIGADE_ASSERT(sources_.size() == schedule_->tables().size());
  for (const auto& source : sources_)
    BRIGADE_ASSERT(source->seq_length() == seq_length());
}

uint64_t ScheduledMixtureSource::samples_per_epoch() const {
  const std::vector<WeightTable>& tables = schedule_->tables();
  double sum = 0;
  for (const WeightTable& table : tables)
    sum += table.back().weight;
  double samples = 0;
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (tables[i].back().weight > 0)
      samples = std::max(
          samples,
          static_cast<double>(sources_[i]->samples_per_epoch()) * sum /
              tables[i].back().weight);
  }
  return static_cast<uint64_t>(std::ceil(samples));
}

void ScheduledMixtureSource::read(uint64_t sample, Window& window) const {
  const auto place = (*schedule_)(sample);
  sources_[place.source]->read(place.sample, window);
}

}  // namespace brigade

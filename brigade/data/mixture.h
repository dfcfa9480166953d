// Several sources in fixed proportions: which source gives sample g, and which
// of its samples that is. A pure function of g in O(1), so a run resumes
// anywhere and no layout changes the order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "brigade/data/sample_source.h"

namespace brigade {

// The proportions of a mixture as a table of kPeriod samples that repeats.
// Within the table the source that is furthest behind its share comes next, so
// every stretch of samples is within one sample or so of the proportions.
class MixtureOrder {
 public:
  static constexpr uint64_t kPeriod = 100'000;

  // Weights are relative. Each source gets weight / sum(weights) of the
  // samples, rounded to 1 / kPeriod. Throws ConfigError for a weight that is
  // not positive and finite or whose share rounds to nothing.
  explicit MixtureOrder(const std::vector<double>& weights);

  struct Place {
    uint32_t source;
    uint64_t sample;  // of that source, counted from 0
    bool operator==(const Place&) const = default;
  };
  Place operator()(uint64_t sample) const;

  // Samples of `source` in one period.
  uint64_t quota(uint32_t source) const { return quotas_[source]; }

 private:
  struct Entry {
    uint32_t source;
    uint32_t rank;  // how many samples of the source came before in the table
  };
  std::vector<uint64_t> quotas_;
  std::vector<Entry> table_;  // kPeriod entries
};

// The shares of weights, not all zero, in whole numbers that add up to
// MixtureOrder::kPeriod.
std::vector<uint64_t> mixture_quotas(const std::vector<double>& weights);

class MixtureSource : public SampleSource {
 public:
  // As many weights as sources (at least one), all of the same seq_length.
  MixtureSource(
      std::vector<std::shared_ptr<const SampleSource>> sources,
      const std::vector<double>& weights);

  int64_t seq_length() const override { return sources_[0]->seq_length(); }
  uint64_t samples_per_epoch() const override;
  void read(uint64_t sample, Window& window) const override;

 private:
  std::vector<std::shared_ptr<const SampleSource>> sources_;
  MixtureOrder order_;
};

}  // namespace brigade

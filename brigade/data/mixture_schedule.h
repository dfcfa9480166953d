// Several sources in proportions that change over a run: which source gives
// sample g, and which of its samples that is. A pure function of g and of the
// weights up to g, so a run resumes anywhere, no layout changes the order, and
// weights that change only from some sample on keep every source where it was.
//
// As in MixtureOrder the source that is furthest behind its share comes next;
// with weights that do not change the two are one order.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "brigade/data/mixture.h"
#include "brigade/data/sample_source.h"

namespace brigade {

// A weight from a sample of the run on.
struct WeightPoint {
  uint64_t sample = 0;
  double weight = 1;
  bool operator==(const WeightPoint&) const = default;
};

// By sample, ascending: linear between two points, constant before the first
// and after the last. Not empty.
using WeightTable = std::vector<WeightPoint>;

double weight_at(const WeightTable& table, uint64_t sample);

// The shares are those of every kShareSamples-th sample and of the tables' own
// points, and hold until the next of them. Memory: 16 bytes per source and
// kChunkSamples of the run so far.
class MixtureSchedule {
 public:
  static constexpr uint64_t kShareSamples = 64;
  static constexpr uint64_t kChunkSamples = 4096;

  // Weights are relative, finite and not negative; a share that rounds to
  // nothing (1 / kPeriod) is none. Throws ConfigError where all are zero at a
  // time.
  explicit MixtureSchedule(std::vector<WeightTable> tables);

  const std::vector<WeightTable>& tables() const { return tables_; }
  // O(1) for a sample near the one before; else O(sample) once. Thread-safe.
  MixtureOrder::Place operator()(uint64_t sample) const;
  // Samples of each source among the first `samples` of the run.
  std::vector<uint64_t> counts(uint64_t samples) const;

 private:
  // How the sources stand before a sample.
  struct State {
    std::vector<int64_t> credits;  // by which each is behind, in 1 / kPeriod
    std::vector<uint64_t> counts;
  };
  struct Chunk {
    uint64_t number = 0;
    std::vector<MixtureOrder::Place> places;
  };
  std::vector<int64_t> shares_at(uint64_t sample) const;
  uint32_t advance(State& state, const std::vector<int64_t>& shares) const;
  void walk(
      uint64_t begin,
      uint64_t end,
      State& state,
      std::vector<MixtureOrder::Place>* places) const;
  const State& state_of(uint64_t chunk) const;

  std::vector<WeightTable> tables_;
  std::vector<uint64_t> points_;  // the samples of all tables, ascending
  mutable std::mutex mutex_;
  mutable std::vector<State> states_;             // guarded by mutex_, by chunk
  mutable std::shared_ptr<const Chunk> current_;  // guarded by mutex_
};

class ScheduledMixtureSource : public SampleSource {
 public:
  // The schedule is of as many sources (at least one), all of the same
  // seq_length.
  ScheduledMixtureSource(
      std::vector<std::shared_ptr<const SampleSource>> sources,
      std::shared_ptr<const MixtureSchedule> schedule);

  int64_t seq_length() const override { return sources_[0]->seq_length(); }
  // Those after which every source whose weight lasts was seen at least once,
  // at the last shares.
  uint64_t samples_per_epoch() const override;
  void read(uint64_t sample, Window& window) const override;

 private:
  std::vector<std::shared_ptr<const SampleSource>> sources_;
  std::shared_ptr<const MixtureSchedule> schedule_;
};

}  // namespace brigade

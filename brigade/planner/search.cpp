#include "brigade/planner/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace brigade::planner {
namespace {

std::vector<int> divisors_of(int number, int most) {
  std::vector<int> divisors;
  for (int divisor = 1; divisor <= std::min(number, most); ++divisor) {
    if (number % divisor == 0)
      divisors.push_back(divisor);
  }
  return divisors;
}

int capped(int64_t value) {
  return static_cast<int>(std::min<int64_t>(value, 1 << 30));
}

// Calls visit(layout) for every layout that can train, in a fixed order. Axes
// that cannot be are skipped as soon as they are chosen, so that large worlds
// stay quick.
template <typename Visit>
class Enumeration {
 public:
  Enumeration(
      const Training& training,
      const SearchOptions& options,
      Visit visit)
      : training_(training), options_(options), visit_(std::move(visit)) {}

  void run() { sizes_from(kNamedAxes.begin() + 1, options_.devices); }

 private:
  // Every size of this axis and the ones behind it in kNamedAxes; data parallel
  // takes the devices which they leave.
  void sizes_from(decltype(kNamedAxes)::const_iterator axis, int devices) {
    if (axis == kNamedAxes.end()) {
      layout_.dims.dp = devices;
      if (training_.batch.sequences % layout_.dims.batch_parts() == 0)
        expert_parallel();
      return;
    }
    for (const int size : divisors_of(devices, most(*axis))) {
      layout_.dims[*axis] = size;
      sizes_from(axis + 1, devices / size);
    }
  }

  // The largest size of an axis that is worth a try.
  int most(Axis axis) const {
    if (axis == Axis::kTp)
      return std::min(
          capped(training_.shape.heads), training_.machine.devices_per_node);
    if (axis == Axis::kPp)
      return training_.shape.layers + 2;
    const bool divides_sequences =
        std::ranges::find(kSequenceAxes, axis) != kSequenceAxes.end();
    return divides_sequences ? capped(training_.batch.sequence_tokens / 2)
                             : options_.devices;
  }

  void expert_parallel() {
    const auto& experts = training_.shape.experts;
    const int most = experts ? capped(experts->num_experts) : 1;
    for (int ep : divisors_of(layout_.dims.replicas(), most)) {
      layout_.dims.ep = ep;
      if (ep == 1 || experts->num_experts % ep == 0)
        micro_batches();
    }
  }

  void micro_batches() {
    const int64_t per_replica =
        training_.batch.sequences / layout_.dims.batch_parts();
    for (int64_t size = 1;
         size <= std::min(per_replica, options_.most_micro_batch);
         size *= 2) {
      layout_.micro_batch = size;
      if (per_replica % size == 0)
        schedules();
    }
  }

  void schedules() {
    layout_.virtual_stages = 1;
    layout_.schedule = ScheduleKind::kOneFOneB;
    if (layout_.dims.pp == 1)
      return tokens();
    for (ScheduleKind kind :
         {ScheduleKind::kAfab,
          ScheduleKind::kOneFOneB,
          ScheduleKind::kZeroBubble}) {
      layout_.schedule = kind;
      tokens();
    }
    layout_.schedule = ScheduleKind::kInterleaved1F1B;
    for (int v = 2; v <= options_.most_virtual_stages &&
                    layout_.dims.pp * v <= training_.shape.layers;
         ++v) {
      layout_.virtual_stages = v;
      if (training_.shape.layers % (layout_.dims.pp * v) == 0)
        tokens();
    }
  }

  void tokens() {
    layout_.tokens = TokenLayout::kReplicated;
    check();
    if (layout_.dims.tp > 1) {
      layout_.tokens = TokenLayout::kSharded;
      check();
    }
  }

  // Sharding and recomputation do not change what is possible.
  void check() {
    layout_.zero_stage = 0;
    layout_.recompute = Recompute::kNone;
    std::vector<std::string> problems;
    validate_layout(
        layout_, training_.shape, training_.batch, options_.devices, problems);
    if (!problems.empty())
      return;
    for (int zero : options_.zero_stages) {
      const bool shards = layout_.dims.replicas() > 1;
      if (zero > 0 && (!shards || (zero > 2 && layout_.dims.pp > 1)))
        continue;
      layout_.zero_stage = zero;
      for (Recompute recompute : options_.recompute) {
        layout_.recompute = recompute;
        visit_(std::as_const(layout_));
      }
    }
  }

  const Training& training_;
  const SearchOptions& options_;
  Visit visit_;
  Layout layout_;
};

using NamedPart = std::pair<const char*, double>;

std::vector<NamedPart> parts_of(const StepEstimate& estimate) {
  const StepParts& parts = estimate.parts;
  std::vector<NamedPart> all;
  for (const PassPart& part : kPassParts)
    all.emplace_back(part.name, parts.computation.*part.seconds);
  all.insert(
      all.end(),
      {{"bubble", parts.bubble},
       {"reduction", parts.reduction},
       {"optimizer", parts.optimizer},
       {"slowest device", parts.slowest}});
  return all;
}

}  // namespace

bool fits(
    const std::vector<MemoryParts>& ranks,
    const machine::Device& device,
    double memory_part) {
  return largest(ranks).total() <=
         memory_part * static_cast<double>(device.memory_bytes);
}

SearchResult search(StepEstimator& estimator, const SearchOptions& options) {
  SearchResult result;
  double least = std::numeric_limits<double>::infinity();
  const machine::Device& device = estimator.training().machine.device;
  const auto visit = [&](const Layout& layout) {
    ++result.possible;
    const std::vector<MemoryParts> memory = estimator.memory(layout);
    const MemoryParts& most = largest(memory);
    if (most.total() < least) {
      least = most.total();
      result.least = layout;
      result.least_memory = most;
    }
    if (fits(memory, device, options.memory_part))
      result.fitting.push_back(estimator.estimate(layout));
    else
      ++result.too_large;
  };
  Enumeration(estimator.training(), options, visit).run();
  std::ranges::stable_sort(result.fitting, {}, &StepEstimate::seconds);
  return result;
}

std::string why_slower(const StepEstimate& best, const StepEstimate& other) {
  const auto a = parts_of(best);
  const auto b = parts_of(other);
  std::vector<NamedPart> changes;
  for (size_t i = 0; i < a.size(); ++i)
    changes.emplace_back(a[i].first, b[i].second - a[i].second);
  std::stable_sort(changes.begin(), changes.end(), [](auto& x, auto& y) {
    return std::abs(x.second) > std::abs(y.second);
  });
  constexpr size_t kShown = 3;
  const double visible = 0.001 * best.seconds;
  std::vector<std::string> words;
  for (const auto& [name, seconds] : changes) {
    if (words.size() < kShown && std::abs(seconds) >= visible)
      words.push_back(fmt::format("{} {:+.3g} s", name, seconds));
  }
  return words.empty() ? "no part differs by 0.1 %"
                       : fmt::format("{}", fmt::join(words, ", "));
}

LeastThatFits least_that_fits(
    const Training& training,
    const SearchOptions& options,
    const SearchResult& nothing) {
  LeastThatFits least;
  least.bytes_each = nothing.least_memory.total() / options.memory_part;
  StepEstimator estimator(training);
  for (int factor = 2; factor <= 64 && least.devices == 0; factor *= 2) {
    SearchOptions more = options;
    more.devices = options.devices * factor;
    bool found = false;
    const auto visit = [&](const Layout& layout) {
      found = found || fits(
                           estimator.memory(layout),
                           training.machine.device,
                           options.memory_part);
    };
    Enumeration(training, more, visit).run();
    if (found)
      least.devices = more.devices;
  }
  return least;
}

}  // namespace brigade::planner

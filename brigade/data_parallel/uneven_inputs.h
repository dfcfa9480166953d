// Ranks that run out of data at different times. Every step begins by counting
// the ranks that have data; those without shadow the others' collectives.
#pragma once

#include <cstdint>

#include "brigade/comm/communicator.h"
#include "brigade/options/choice.h"

namespace brigade {

// What happens if ranks have different numbers of batches.
struct UnevenInputsOptions {
  // What a mean divides the sum over ranks by.
  enum class Divisor {
    kRanksWithData,
    kAllRanks,  // those without data count with a gradient of zero
  };
  // What happens once some ranks have no data while others still have some.
  enum class EarlyEnd {
    kShadow,  // they take part with zeros until all have joined
    kThrow,   // UsageError on every rank
  };
  Divisor divisor = Divisor::kRanksWithData;
  EarlyEnd early_end = EarlyEnd::kShadow;
};
// The names in messages.
template <>
inline constexpr std::array kChoices<UnevenInputsOptions::Divisor>{
    Choice{UnevenInputsOptions::Divisor::kRanksWithData, "ranks_with_data"},
    Choice{UnevenInputsOptions::Divisor::kAllRanks, "all_ranks"}};
template <>
inline constexpr std::array kChoices<UnevenInputsOptions::EarlyEnd>{
    Choice{UnevenInputsOptions::EarlyEnd::kShadow, "shadow"},
    Choice{UnevenInputsOptions::EarlyEnd::kThrow, "throw"}};

class UnevenInputs {
 public:
  // `group` outlives this object.
  explicit UnevenInputs(Communicator& group);

  // Collective, before the first step. Throws CommError if ranks differ in
  // `options`.
  void allow(const UnevenInputsOptions& options);
  bool is_allowed() const { return state_ != State::kEven; }

  // Collective: a step begins, and this rank has data. Costs an all-reduce of 8
  // bytes; does nothing unless allowed. Throws UsageError with
  // EarlyEnd::kThrow if another rank has none.
  void begin_step();
  // The same on a rank without data. Returns whether there is a step, that is,
  // another rank has data.
  bool begin_shadow_step();
  // Collective, after begin_shadow_step() was false everywhere: returns the
  // rank that was the last to have data (the highest of several).
  int last_rank_with_data();

  // The divisor of a mean in this step.
  int divisor() const;
  // The number of ranks that have data in this step.
  int ranks_with_data() const { return ranks_with_data_; }
  // The lowest rank that has data. If some have none it is collective over all
  // (an all-reduce of 8 bytes). `has_data`: whether this rank has some.
  int first_rank_with_data(bool has_data);

 private:
  //   kEven --allow()--> kHasData --begin_shadow_step()--> kShadows
  //                          ^------last_rank_with_data()------+
  enum class State { kEven, kHasData, kShadows };

  void count(int mine);

  Communicator* group_;
  UnevenInputsOptions options_;
  State state_ = State::kEven;
  int64_t shadowed_steps_ = 0;
  int ranks_with_data_;
};

}  // namespace brigade

#include "brigade/data_parallel/uneven_inputs.h"

#include <fmt/format.h>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/data_parallel/same_on_ranks.h"
#include "brigade/options/describe.h"

namespace brigade {

UnevenInputs::UnevenInputs(Communicator& group)
    : group_(&group), ranks_with_data_(group.size()) {}

void UnevenInputs::allow(const UnevenInputsOptions& options) {
  check_same_on_ranks(
      describe_members(
          options,
          OptionMember{"divisor", &UnevenInputsOptions::divisor},
          OptionMember{"early_end", &UnevenInputsOptions::early_end}),
      "options of uneven inputs",
      *group_);
  options_ = options;
  state_ = State::kHasData;
}

void UnevenInputs::count(int mine) {
  ranks_with_data_ = static_cast<int>(Agreement(*group_).sum(mine));
  const bool is_early_end =
      ranks_with_data_ > 0 && ranks_with_data_ < group_->size();
  if (options_.early_end == UnevenInputsOptions::EarlyEnd::kThrow &&
      is_early_end) {
    throw UsageError(fmt::format(
        "[data_parallel] {} of the {} ranks of group '{}' have no more data "
        "while the others have some, and uneven inputs were set to end then; "
        "this is rank {}",
        group_->size() - ranks_with_data_,
        group_->size(),
        group_->name(),
        group_->rank()));
  }
}

void UnevenInputs::begin_step() {
  if (is_allowed())
    count(1);
}

bool UnevenInputs::begin_shadow_step() {
  if (state_ == State::kHasData) {
    state_ = State::kShadows;
    shadowed_steps_ = 0;
  }
  count(0);
  if (ranks_with_data_ == 0)
    return false;
  ++shadowed_steps_;
  return true;
}

int UnevenInputs::last_rank_with_data() {
  const Agreement agreement(*group_);
  const int64_t fewest = agreement.min(shadowed_steps_);
  const int64_t last =
      agreement.max(shadowed_steps_ == fewest ? group_->rank() : -1);
  state_ = State::kHasData;
  ranks_with_data_ = group_->size();
  return static_cast<int>(last);
}

int UnevenInputs::divisor() const {
  return options_.divisor == UnevenInputsOptions::Divisor::kAllRanks
             ? group_->size()
             : ranks_with_data_;
}

int UnevenInputs::first_rank_with_data(bool has_data) {
  if (ranks_with_data_ == group_->size())
    return 0;
  return static_cast<int>(
      Agreement(*group_).min(has_data ? group_->rank() : group_->size()));
}

}  // namespace brigade

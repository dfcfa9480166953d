// Options of schedule-free AdamW (optim/schedule_free_adamw.h); its betas and
// epsilon are AdamW's. PURE.
#pragma once

namespace brigade {

// What a step counts in the average: its number to the power `step_power` times
// the highest learning rate so far to the power `rate_power`.
struct ScheduleFreeOptions {
  double step_power = 0;
  double rate_power = 2;
};

}  // namespace brigade

#include "brigade/data/taught_source.h"

#include <cstddef>
#include <vector>

namespace brigade {

void TaughtSource::read(uint64_t sample, Window& window) const {
  source_->read(sample, window);
  const auto k = static_cast<size_t>(teacher_->info().k);
  TeacherTokens& teacher = window.teacher;
  teacher.k = teacher_->info().k;
  teacher.ids.clear();
  teacher.log_probs.clear();
  // Of padding, which does not count, zeros.
  const auto fill_to = [&](size_t place) {
    teacher.ids.resize(place * k, 0);
    teacher.log_probs.resize(place * k, 0);
  };
  std::vector<int64_t> tokens;
  for (const TargetRun& run : window.runs) {
    fill_to(run.place);
    tokens.resize(run.numel);
    dataset_->read(run.first_token, tokens);
    teacher_->read(run.first_token, tokens, teacher);
  }
  fill_to(window.targets.size());
}

}  // namespace brigade

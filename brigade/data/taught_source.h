// The samples of a source, with what a teacher says of their targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "brigade/base/check.h"
#include "brigade/data/sample_source.h"
#include "brigade/data/teacher_file.h"

namespace brigade {

class TaughtSource : public SampleSource {
 public:
  // `source` fills in Window::runs, of `dataset`, of which `teacher` was made.
  TaughtSource(
      std::shared_ptr<const SampleSource> source,
      std::shared_ptr<const TokenDataset> dataset,
      std::shared_ptr<const TeacherFile> teacher)
      : source_(std::move(source)),
        dataset_(std::move(dataset)),
        teacher_(std::move(teacher)) {}

  int64_t seq_length() const override { return source_->seq_length(); }
  uint64_t samples_per_epoch() const override {
    return source_->samples_per_epoch();
  }
  void read(uint64_t sample, Window& window) const override {
    source_->read(sample, window);
    const auto k = static_cast<size_t>(teacher_->info().k);
    TeacherTokens& teacher = window.teacher;
    teacher.k = teacher_->info().k;
    teacher.ids.clear();
    teacher.log_probs.clear();
    std::vector<int64_t> tokens;
    for (const TargetRun& run : window.runs) {
      BRIGADE_ASSERT(teacher.ids.size() == run.place * k);
      tokens.resize(run.numel);
      dataset_->read(run.first_token, tokens);
      teacher_->read(run.first_token, tokens, teacher);
    }
    // Padding, which does not count, has zeros.
    teacher.ids.resize(window.targets.size() * k, 0);
    teacher.log_probs.resize(window.targets.size() * k, 0);
  }

 private:
  std::shared_ptr<const SampleSource> source_;
  std::shared_ptr<const TokenDataset> dataset_;
  std::shared_ptr<const TeacherFile> teacher_;
};

}  // namespace brigade

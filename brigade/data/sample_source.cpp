#include "brigade/data/sample_source.h"

#include "brigade/base/check.h"

namespace brigade {

void WindowSource::read(uint64_t sample, std::span<int64_t> window) const {
  BRIGADE_ASSERT(
      window.size() == static_cast<uint64_t>(seq_length_) + 1,
      "a window of {} for seq_length {}",
      window.size(),
      seq_length_);
  dataset_->read(first_token(sample), window);
}

void WindowSource::document_starts(
    uint64_t sample,
    std::vector<int64_t>& starts) const {
  starts.clear();
  const DocumentIndex& documents = dataset_->documents();
  const uint64_t begin = first_token(sample);
  const uint64_t end = begin + static_cast<uint64_t>(seq_length_);
  for (uint64_t d = documents.document_of(begin) + 1; d < documents.size();
       ++d) {
    const uint64_t start = documents.begin(d);
    if (start >= end)
      break;
    const auto position = static_cast<int64_t>(start - begin);
    // Empty documents begin where the next one does.
    if (starts.empty() || starts.back() != position)
      starts.push_back(position);
  }
}

}  // namespace brigade

#include "brigade/data/sample_source.h"

namespace brigade {

void WindowSource::read(uint64_t sample, Window& window) const {
  const uint64_t begin = first_token(sample);
  window.inputs.resize(static_cast<size_t>(seq_length_));
  window.targets.resize(window.inputs.size());
  dataset_->read(begin, window.inputs);
  dataset_->read_targets(begin + 1, window.targets);
  window.runs = {{0, begin + 1, window.targets.size()}};

  std::vector<int64_t>& starts = window.document_starts;
  starts.clear();
  const DocumentIndex& documents = dataset_->documents();
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

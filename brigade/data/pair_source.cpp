#include "brigade/data/pair_source.h"

#include <fmt/format.h>

#include <cstddef>
#include <span>
#include <string>

#include "brigade/base/error.h"

namespace brigade {

void PairDataset::require_fits(int64_t seq_length) const {
  const DocumentIndex& documents = dataset->documents();
  const auto fail = [&](uint64_t document, const std::string& what) {
    throw DataError(fmt::format(
        "[pairs] '{}': the {} answer of pair {} {}",
        dataset->path().string(),
        document % 2 == 0 ? "chosen" : "rejected",
        document / 2,
        what));
  };
  for (uint64_t d = 0; d < documents.size(); ++d) {
    const uint64_t begin = documents.begin(d);
    const uint64_t end = documents.begin(d + 1);
    // The last token is a target alone.
    if (end - begin > static_cast<uint64_t>(seq_length) + 1)
      fail(
          d,
          fmt::format(
              "has {} tokens, more than training.seq_length {} and one: raise "
              "it, or prepare the pairs with --max-tokens {}",
              end - begin,
              seq_length,
              seq_length + 1));
    uint64_t token = begin + 1;
    while (token < end && !dataset->counts(token))
      ++token;
    if (token >= end)
      fail(d, "has no token that counts");
  }
}

void PairSource::read(uint64_t sample, Window& window) const {
  const uint64_t document = 2 * sampler_.window(sample / 2) + sample % 2;
  const DocumentIndex& documents = pairs_->dataset->documents();
  const uint64_t begin = documents.begin(document);
  const uint64_t predicted = documents.begin(document + 1) - begin - 1;
  // Any id will do as padding: no token before it sees it.
  window.inputs.assign(static_cast<size_t>(seq_length_), 0);
  window.targets.assign(static_cast<size_t>(seq_length_), kNoTarget);
  pairs_->dataset->read(begin, std::span(window.inputs).first(predicted));
  pairs_->dataset->read_targets(
      begin + 1, std::span(window.targets).first(predicted));
  window.document_starts.clear();
  window.reference.reset();
  if (!pairs_->reference.empty())
    window.reference = pairs_->reference[document];
}

}  // namespace brigade

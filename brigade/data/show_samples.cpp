#include "brigade/data/show_samples.h"

#include <fmt/format.h>

#include <span>
#include <vector>

#include "brigade/base/check.h"
#include "brigade/data/token_dataset.h"
#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

std::string show_sample(
    const std::filesystem::path& prefix,
    const std::string& tokenizer,
    uint64_t document,
    const SampleMarks& marks) {
  const TokenDataset dataset = TokenDataset::open(prefix);
  const DocumentIndex& documents = dataset.documents();
  BRIGADE_ASSERT(document < documents.size());
  const auto words = load_tokenizer(tokenizer);
  const uint64_t begin = documents.begin(document);
  std::vector<int64_t> wide(documents.begin(document + 1) - begin);
  dataset.read(begin, wide);
  const std::vector<int32_t> ids(wide.begin(), wide.end());
  const auto counts = [&](size_t i) { return dataset.counts(begin + i); };

  std::string text;
  size_t counting = 0;
  for (size_t from = 0; from < ids.size();) {
    size_t to = from + 1;
    while (to < ids.size() && counts(to) == counts(from))
      ++to;
    const std::string run =
        words->decode(std::span(ids).subspan(from, to - from));
    text += counts(from) ? marks.begin + run + marks.end : run;
    counting += counts(from) ? to - from : 0;
    from = to;
  }
  return fmt::format(
      "sample {}: {} tokens, of which {} count\n{}\n",
      document + 1,
      ids.size(),
      counting,
      text);
}

}  // namespace brigade

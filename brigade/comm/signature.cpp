#include "brigade/comm/signature.h"

#include <fmt/format.h>

#include "brigade/base/error.h"

namespace brigade {

torch::Tensor signature_of(const CollectiveRecord& record) {
  return torch::tensor(
      {static_cast<int64_t>(record.op),
       static_cast<int64_t>(record.dtype),
       record.numel,
       record.sequence_number,
       static_cast<int64_t>(record.peer)});
}

torch::Tensor signature_of(const RowSplits& splits) {
  return torch::cat(
      {torch::tensor(splits.input), torch::tensor(splits.output)});
}

void check_signatures(
    const torch::Tensor& all,
    const torch::Tensor& mine,
    const std::string& group) {
  bool same = true;
  for (int64_t peer = 0; peer < all.size(0); ++peer)
    same = same && torch::equal(all[peer], mine);
  if (same)
    return;
  std::string text;
  for (int64_t peer = 0; peer < all.size(0); ++peer) {
    const auto* row = all[peer].data_ptr<int64_t>();
    CollectiveRecord theirs;
    theirs.op = static_cast<Collective>(row[0]);
    theirs.dtype = static_cast<torch::ScalarType>(row[1]);
    theirs.numel = row[2];
    theirs.sequence_number = row[3];
    theirs.peer = static_cast<int>(row[4]);
    text += fmt::format("\n  rank {}: {}", peer, to_string(theirs));
  }
  throw CommError(fmt::format(
      "[comm] the ranks of group '{}' launched different collectives:{}",
      group,
      text));
}

void check_splits(
    const torch::Tensor& all,
    const CollectiveRecord& record,
    const std::string& group) {
  const int64_t size = all.size(0);
  const auto rows = all.accessor<int64_t, 2>();
  std::string text;
  for (int64_t from = 0; from < size; ++from) {
    for (int64_t to = 0; to < size; ++to) {
      const int64_t sent = rows[from][to];
      const int64_t expected = rows[to][size + from];
      if (sent != expected)
        text += fmt::format(
            "\n  rank {} sends {} rows to rank {}, which expects {}",
            from,
            sent,
            to,
            expected);
    }
  }
  if (!text.empty())
    throw CommError(fmt::format(
        "[comm] {} in group '{}': the splits of the ranks do not fit:{}",
        to_string(record),
        group,
        text));
}

}  // namespace brigade

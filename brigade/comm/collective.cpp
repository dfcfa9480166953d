#include "brigade/comm/collective.h"

#include <fmt/format.h>

namespace brigade {

std::string to_string(const CollectiveRecord& record) {
  std::string text = fmt::format(
      "{} #{} of {} x {}",
      to_string(record.op),
      record.sequence_number,
      record.numel,
      c10::toString(record.dtype));
  if (record.peer >= 0)
    text += fmt::format(" with rank {}", record.peer);
  return text;
}

bool is_point_to_point(Collective op) {
  return op == Collective::kSend || op == Collective::kRecv;
}

}  // namespace brigade

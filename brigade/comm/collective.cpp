#include "brigade/comm/collective.h"

#include <fmt/format.h>

namespace brigade {

const char* to_string(Collective op) {
  switch (op) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kAllReduceRows:
      return "all_reduce_rows";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kAllToAllSingle:
      return "all_to_all_single";
    case Collective::kSend:
      return "send";
    case Collective::kRecv:
      return "recv";
    case Collective::kBarrier:
      return "barrier";
  }
  return "unknown";
}

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

// Agreement of a group's ranks on small values: whether all are equal, which
// rank is first, what rank 0 has. Values are on the CPU, whatever device the
// group's collectives run on.
//
// Every function is collective and blocks until the value is on this host:
// all ranks of the group call the same functions in the same order. Throws
// CommError when a peer was lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brigade/comm/communicator.h"

namespace brigade {

// The lowest rank whose text is not rank 0's.
struct TextDifference {
  int rank = 0;
  std::string of_rank_0;
  std::string of_rank;
};

class Agreement {
 public:
  // `group` must be able to move CPU tensors, and outlives this object.
  explicit Agreement(Communicator& group) : group_(&group) {}

  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }

  // Combines one int64 per rank. Each costs an all-reduce of 8 bytes.
  int64_t sum(int64_t mine) const;
  int64_t min(int64_t mine) const;
  int64_t max(int64_t mine) const;
  // Combines element by element; ranks must pass equally many.
  std::vector<int64_t> max(const std::vector<int64_t>& mine) const;

  // The text of `root`; others' are ignored. Two broadcasts.
  std::string text_of(int root, const std::string& mine) const;
  // `root`'s values; ranks must pass equally many. One broadcast.
  std::vector<int64_t> values_of(int root, const std::vector<int64_t>& mine)
      const;
  // All ranks' texts, by rank. Costs an all-gather of the lengths, and one of
  // texts padded to the longest.
  std::vector<std::string> texts(const std::string& mine) const;
  // std::nullopt if all texts are equal, which costs an all-gather of 16 bytes
  // per rank; a difference costs texts() as well.
  std::optional<TextDifference> find_difference(const std::string& mine) const;

 private:
  int64_t reduce(int64_t mine, ReduceOp op) const;

  Communicator* group_;
};

}  // namespace brigade

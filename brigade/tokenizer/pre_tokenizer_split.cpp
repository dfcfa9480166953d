#include "brigade/tokenizer/pre_tokenizer_split.h"

#include <fmt/format.h>

namespace brigade {

SplitBehavior split_behavior(const JsonNode& node) {
  const std::string& name = node.string();
  if (name == "Removed")
    return SplitBehavior::kRemoved;
  if (name == "Isolated")
    return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious")
    return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext")
    return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous")
    return SplitBehavior::kContiguous;
  node.fail(fmt::format(
      "unknown behavior \"{}\"; there are Removed, Isolated, "
      "MergedWithPrevious, MergedWithNext and Contiguous",
      name));
}

void PieceSplitter::segment(size_t begin, size_t end, bool is_match) {
  is_match = is_match != invert_;
  bool joins = false;
  switch (behavior_) {
    case SplitBehavior::kRemoved:
      if (!is_match)
        emit(begin, end);
      return;
    case SplitBehavior::kIsolated:
      emit(begin, end);
      return;
    case SplitBehavior::kContiguous:
      joins = is_match == previous_is_match_;
      break;
    case SplitBehavior::kMergedWithPrevious:
      joins = is_match && !previous_is_match_;
      break;
    case SplitBehavior::kMergedWithNext:
      joins = !is_match && previous_is_match_;
      break;
  }
  previous_is_match_ = is_match;
  if (held_ && joins) {
    held_end_ = end;
    return;
  }
  if (held_)
    emit(held_begin_, held_end_);
  held_ = true;
  held_begin_ = begin;
  held_end_ = end;
}

}  // namespace brigade

// How Hugging Face's pre-tokenizers treat what they split on. For "-" in
// "the-final--countdown":
//   Removed             the final countdown
//   Isolated            the - final - - countdown
//   MergedWithPrevious  the- final- - countdown
//   MergedWithNext      the -final - -countdown
//   Contiguous          the - final -- countdown
#pragma once

#include "brigade/tokenizer/pre_tokenizer.h"

namespace brigade {

enum class SplitBehavior {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,
};

SplitBehavior split_behavior(const JsonNode& node);

// Takes the delimiters of one piece from left to right and emits its parts.
class PieceSplitter {
 public:
  // kYes: what lies between the delimiters counts as one, and they do not.
  enum class Invert { kNo, kYes };
  PieceSplitter(
      const Piece& piece,
      SplitBehavior behavior,
      const PieceSink& sink,
      Invert invert = Invert::kNo)
      : piece_(piece),
        behavior_(behavior),
        sink_(sink),
        invert_(invert == Invert::kYes) {}

  void delimiter(size_t begin, size_t end) {
    if (begin > covered_)
      segment(covered_, begin, false);
    segment(begin, end, true);
    covered_ = end;
  }
  void finish() {
    if (covered_ < piece_.text.size())
      segment(covered_, piece_.text.size(), false);
    if (held_)
      emit(held_begin_, held_end_);
  }

 private:
  const Piece& piece_;
  const SplitBehavior behavior_;
  const PieceSink& sink_;
  const bool invert_;
  size_t covered_ = 0;
  // The last segment, kept back while a later one may join it.
  bool held_ = false;
  size_t held_begin_ = 0;
  size_t held_end_ = 0;
  bool previous_is_match_ = false;

  void segment(size_t begin, size_t end, bool is_match);
  void emit(size_t begin, size_t end) {
    if (begin == end)
      return;
    sink_(
        {.text = piece_.text.substr(begin, end - begin),
         .byte_level = false,
         .at_start = piece_.at_start && begin == 0});
  }
};

}  // namespace brigade

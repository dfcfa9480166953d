// How documents become sequences; dataset.packing, dataset.long_documents.
// PURE.
#pragma once

#include "brigade/options/choice.h"

namespace brigade {

// What a sequence holds of documents.
enum class Packing {
  kNone,     // documents one after another, cut wherever a sequence ends
  kBestFit,  // whole documents side by side (data/packing_plan.h)
};
// Their names.
template <>
inline constexpr std::array kChoices<Packing>{
    Choice{Packing::kNone, "none"},
    Choice{Packing::kBestFit, "best_fit"}};

// What becomes of a packed document that is longer than a sequence.
enum class LongDocuments {
  kRefuse,  // an error before the first step
  kSkip,    // left out
  kCut,     // its beginning alone, as much as a sequence holds
  kSplit,   // pieces that a sequence holds, each a document of its own
};
// Their names.
template <>
inline constexpr std::array kChoices<LongDocuments>{
    Choice{LongDocuments::kRefuse, "refuse"},
    Choice{LongDocuments::kSkip, "skip"},
    Choice{LongDocuments::kCut, "cut"},
    Choice{LongDocuments::kSplit, "split"}};

}  // namespace brigade

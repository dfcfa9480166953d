// What a run makes of its datasets (data/training_data.h): how documents become
// sequences, and in which order they come. PURE.
#pragma once

#include <cstdint>
#include <string>

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

// The keys of the config group "dataset" that data/ reads.
struct DatasetOptions {
  // A path, or "bytes": what made the datasets, or is to make them of text;
  // empty: the dataset's own, or the model's.
  std::string tokenizer;
  bool shuffle = false;       // windows in each epoch
  int64_t shuffle_block = 0;  // BatchSamplerOptions
  // Documents change places in each epoch, not only windows
  // (data/document_epochs.h); without packing.
  bool document_epochs = false;
  Packing packing = Packing::kNone;
  LongDocuments long_documents = LongDocuments::kRefuse;  // of packing
  // What a teacher says of the one dataset (data/teacher_file.h), a file of
  // `brigade evaluate --top-k`; empty: none.
  std::string teacher;
};

}  // namespace brigade

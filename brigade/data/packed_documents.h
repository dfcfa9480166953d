// Whole documents, several to a sequence: none is cut, and what no document
// fills is padding that has no loss.
//
// A document of n tokens takes n - 1 places: its last token is a target alone,
// and the first token of a document is none. So a sequence of T places holds a
// document of T + 1 tokens, and what a sequence learns is what its documents
// would give one by one. Attention has to stay inside each of them
// (LoaderOptions::reset_attention).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "brigade/data/packing_plan.h"
#include "brigade/data/sample_source.h"
#include "brigade/options/dataset.h"

namespace brigade {

// What became of the documents.
struct PackingCounts {
  uint64_t documents = 0;  // that are packed
  uint64_t sequences = 0;  // in one epoch
  uint64_t places = 0;     // of all sequences
  uint64_t taken = 0;      // places that are no padding
  uint64_t too_long = 0;   // skipped, cut or split
  uint64_t too_short = 0;  // fewer than two tokens: nothing to predict
  // Adds another dataset's.
  PackingCounts& operator+=(const PackingCounts& other);
};

// "12 documents in 3 sequences, 98.25 % of 6144 places taken; 1 longer than a
// sequence cut, 2 of fewer than two tokens left out".
std::string describe(const PackingCounts& counts, LongDocuments long_documents);

// Needs 16 bytes per document and as many per sequence.
class PackedDocuments : public SampleSource {
 public:
  // order.windows: which documents of the dataset. Shuffled, each epoch has the
  // sequences in another order, as BatchSampler has it, and, without a block,
  // documents of one length in each other's places; otherwise sequences come in
  // the order of their first documents. Throws DataError, naming the dataset,
  // for documents that are too long where these are refused, and where nothing
  // is left.
  PackedDocuments(
      std::shared_ptr<const TokenDataset> dataset,
      int64_t seq_length,
      const BatchSamplerOptions& order,
      LongDocuments long_documents = LongDocuments::kRefuse);

  int64_t seq_length() const override { return seq_length_; }
  uint64_t samples_per_epoch() const override { return counts_.sequences; }
  void read(uint64_t sample, Window& window) const override;

  // What became of these documents.
  const PackingCounts& counts() const { return counts_; }

 private:
  // handle(first token, how many are predicted), document after document.
  template <typename Handle>
  void for_each_piece(const Handle& handle) const;
  void count_documents();
  void place_pieces();
  void order_sequences();
  uint64_t length_of(uint64_t piece) const;
  // The piece that is in the place of `piece` in this epoch.
  uint64_t piece_in(uint64_t epoch, uint64_t piece, uint64_t length) const;

  std::shared_ptr<const TokenDataset> dataset_;
  int64_t seq_length_;
  BatchSamplerOptions order_;
  LongDocuments long_documents_;
  PackingCounts counts_;
  std::vector<uint64_t> pieces_of_length_;
  // How many pieces are longer: those of length n are [longer_[n],
  // longer_[n - 1]).
  std::vector<uint64_t> longer_;
  std::vector<uint64_t> first_tokens_;  // by piece
  PackingPlan plan_;
  std::vector<uint64_t> sequences_;  // of the plan, in order
  std::unique_ptr<const BatchSampler> sampler_;
};

// Where the held-out documents begin: the last `fraction` in (0, 1) of them, at
// least one. Throws DataError, naming `dataset`, when none would be left to
// train on.
uint64_t first_held_out_document(
    uint64_t num_documents,
    double fraction,
    const std::string& dataset);

}  // namespace brigade

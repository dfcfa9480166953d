#include "brigade/data/packed_documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/base/hash.h"
#include "brigade/data/permutation.h"

namespace brigade {

PackingCounts& PackingCounts::operator+=(const PackingCounts& other) {
  documents += other.documents;
  sequences += other.sequences;
  places += other.places;
  taken += other.taken;
  too_long += other.too_long;
  too_short += other.too_short;
  return *this;
}

std::string describe(
    const PackingCounts& counts,
    LongDocuments long_documents) {
  std::string text = fmt::format(
      "{} documents in {} sequences, {:.2f} % of {} places taken",
      counts.documents,
      counts.sequences,
      100 * static_cast<double>(counts.taken) /
          static_cast<double>(counts.places),
      counts.places);
  std::string separator = "; ";
  if (counts.too_long > 0) {
    const bool is_skipped = long_documents == LongDocuments::kSkip;
    text += fmt::format(
        "{}{} longer than a sequence {}",
        separator,
        counts.too_long,
        is_skipped ? "left out" : to_string(long_documents));
    separator = ", ";
  }
  if (counts.too_short > 0)
    text += fmt::format(
        "{}{} of fewer than two tokens left out", separator, counts.too_short);
  return text;
}

PackedDocuments::PackedDocuments(
    std::shared_ptr<const TokenDataset> dataset,
    int64_t seq_length,
    const BatchSamplerOptions& order,
    LongDocuments long_documents)
    : dataset_(std::move(dataset)),
      seq_length_(seq_length),
      order_(order),
      long_documents_(long_documents) {
  BRIGADE_ASSERT(
      seq_length > 0 && order.windows.begin <= order.windows.end &&
      order.windows.end <= dataset_->documents().size());
  count_documents();
  place_pieces();
  plan_ = pack_best_fit(pieces_of_length_);
  order_sequences();
  counts_.sequences = plan_.num_sequences();
  counts_.places = counts_.sequences * static_cast<uint64_t>(seq_length_);
  BatchSamplerOptions of_sequences = order;
  of_sequences.windows = {0, counts_.sequences};
  sampler_ = std::make_unique<const BatchSampler>(of_sequences);
}

template <typename Handle>
void PackedDocuments::for_each_piece(const Handle& handle) const {
  const auto most = static_cast<uint64_t>(seq_length_);
  const DocumentIndex& documents = dataset_->documents();
  uint64_t begin = documents.begin(order_.windows.begin);
  for (uint64_t d = order_.windows.begin; d < order_.windows.end; ++d) {
    const uint64_t end = documents.begin(d + 1);
    const uint64_t predicted = end > begin ? end - begin - 1 : 0;
    const bool is_long = predicted > most;
    if (is_long && long_documents_ == LongDocuments::kSplit) {
      for (uint64_t done = 0; done < predicted; done += most)
        handle(begin + done, std::min(most, predicted - done));
    } else if (
        predicted > 0 &&
        !(is_long && long_documents_ == LongDocuments::kSkip)) {
      handle(begin, std::min(most, predicted));
    }
    begin = end;
  }
}

void PackedDocuments::count_documents() {
  const auto most = static_cast<uint64_t>(seq_length_);
  const DocumentIndex& documents = dataset_->documents();
  uint64_t first_long = 0;
  uint64_t begin = documents.begin(order_.windows.begin);
  for (uint64_t d = order_.windows.begin; d < order_.windows.end; ++d) {
    const uint64_t end = documents.begin(d + 1);
    counts_.too_short += end - begin < 2 ? 1 : 0;
    if (end - begin > most + 1 && ++counts_.too_long == 1)
      first_long = d;
    begin = end;
  }
  if (counts_.too_long > 0 && long_documents_ == LongDocuments::kRefuse)
    throw DataError(fmt::format(
        "[{}] {} of {} documents are longer than the {} tokens that "
        "training.seq_length = {} holds; the first is document {}, of {}. Set "
        "dataset.long_documents to skip, cut or split, or training.seq_length "
        "higher",
        dataset_->path().string(),
        counts_.too_long,
        order_.windows.size(),
        most + 1,
        most,
        first_long,
        documents.begin(first_long + 1) - documents.begin(first_long)));
  const bool are_skipped = long_documents_ == LongDocuments::kSkip;
  counts_.documents = order_.windows.size() - counts_.too_short -
                      (are_skipped ? counts_.too_long : 0);
  if (counts_.documents == 0)
    throw DataError(fmt::format(
        "[{}] none of its {} documents can be packed: {} have fewer than two "
        "tokens, {} are longer than the {} that training.seq_length = {} holds "
        "(dataset.long_documents)",
        dataset_->path().string(),
        order_.windows.size(),
        counts_.too_short,
        counts_.too_long,
        most + 1,
        most));
}

void PackedDocuments::place_pieces() {
  const auto most = static_cast<size_t>(seq_length_);
  pieces_of_length_.assign(most + 1, 0);
  for_each_piece([&](uint64_t, uint64_t predicted) {
    ++pieces_of_length_[predicted];
    counts_.taken += predicted;
  });
  longer_.assign(most + 1, 0);
  for (size_t length = most; length > 0; --length)
    longer_[length - 1] = longer_[length] + pieces_of_length_[length];
  first_tokens_.resize(longer_[0]);
  std::vector<uint64_t> next = longer_;
  for_each_piece([&](uint64_t first_token, uint64_t predicted) {
    first_tokens_[next[predicted]++] = first_token;
  });
}

void PackedDocuments::order_sequences() {
  std::vector<uint64_t> first_of(plan_.num_sequences());
  for (uint64_t s = 0; s < plan_.num_sequences(); ++s) {
    const auto pieces = plan_.pieces_of(s);
    first_of[s] = first_tokens_[pieces[0]];
    for (const uint64_t piece : pieces)
      first_of[s] = std::min(first_of[s], first_tokens_[piece]);
  }
  sequences_.resize(plan_.num_sequences());
  std::iota(sequences_.begin(), sequences_.end(), uint64_t{0});
  std::sort(sequences_.begin(), sequences_.end(), [&](uint64_t a, uint64_t b) {
    return first_of[a] < first_of[b];
  });
}

uint64_t PackedDocuments::length_of(uint64_t piece) const {
  // longer_ descends: the first length that no more than `piece` exceed.
  const auto found = std::lower_bound(
      longer_.begin(), longer_.end(), piece, std::greater<uint64_t>());
  return static_cast<uint64_t>(found - longer_.begin());
}

uint64_t PackedDocuments::piece_in(
    uint64_t epoch,
    uint64_t piece,
    uint64_t length) const {
  const uint64_t count = pieces_of_length_[length];
  if (!order_.shuffle || order_.shuffle_block > 0 || count == 1)
    return piece;
  // Another stream of random numbers than the sampler's.
  const uint64_t seed = mix_bits(mix_bits(order_.seed) + 2) ^ epoch;
  const Permutation order(count, mix_bits(mix_bits(seed) + length));
  return longer_[length] + order(piece - longer_[length]);
}

void PackedDocuments::read(uint64_t sample, Window& window) const {
  const auto seq_length = static_cast<size_t>(seq_length_);
  window.inputs.assign(seq_length, 0);
  window.targets.assign(seq_length, kNoTarget);
  window.document_starts.clear();
  window.runs.clear();
  size_t place = 0;
  const auto begin_document = [&] {
    if (place > 0 && place < seq_length)
      window.document_starts.push_back(static_cast<int64_t>(place));
  };
  const uint64_t epoch = sampler_->epoch(sample);
  const uint64_t sequence = sequences_[sampler_->window(sample)];
  for (const uint64_t slot : plan_.pieces_of(sequence)) {
    const uint64_t length = length_of(slot);
    const uint64_t first = first_tokens_[piece_in(epoch, slot, length)];
    begin_document();
    dataset_->read(first, std::span(window.inputs).subspan(place, length));
    dataset_->read_targets(
        first + 1, std::span(window.targets).subspan(place, length));
    window.runs.push_back({place, first + 1, length});
    place += length;
  }
  begin_document();
}

uint64_t first_held_out_document(
    uint64_t num_documents,
    double fraction,
    const std::string& dataset) {
  BRIGADE_ASSERT(fraction > 0 && fraction < 1, "fraction {}", fraction);
  const auto held_out = std::max<uint64_t>(
      1, static_cast<uint64_t>(static_cast<double>(num_documents) * fraction));
  if (held_out >= num_documents)
    throw DataError(fmt::format(
        "[packing] '{}' holds {} document(s), of which {} would be held out "
        "for evaluation: none is left to train on. Give more documents, or no "
        "training.eval_every",
        dataset,
        num_documents,
        held_out));
  return num_documents - held_out;
}

}  // namespace brigade

#include "brigade/data/document_epochs.h"

#include <algorithm>

#include "brigade/base/check.h"
#include "brigade/base/hash.h"

namespace brigade {

DocumentEpochSource::DocumentEpochSource(
    std::shared_ptr<const TokenDataset> dataset,
    int64_t seq_length,
    const BatchSamplerOptions& order)
    : dataset_(std::move(dataset)),
      seq_length_(seq_length),
      seed_(order.seed),
      sampler_(
          {.windows = order.windows,
           .seed = order.seed,
           .shuffle = order.shuffle}),
      // The last window's last token is the first that may be held out.
      num_tokens_(order.windows.end * static_cast<uint64_t>(seq_length) + 1) {
  BRIGADE_ASSERT(
      order.windows.begin == 0 && num_tokens_ <= dataset_->num_tokens());
  num_documents_ = dataset_->documents().document_of(num_tokens_ - 1) + 1;
}

uint64_t DocumentEpochSource::document_tokens(uint64_t document) const {
  const DocumentIndex& documents = dataset_->documents();
  return std::min(documents.begin(document + 1), num_tokens_) -
         documents.begin(document);
}

DocumentEpochSource::EpochPointer DocumentEpochSource::make_epoch(
    uint64_t number) const {
  // Another stream of random numbers than the sampler's.
  const uint64_t seed = mix_bits(mix_bits(seed_) + 1) ^ number;
  Epoch epoch{number, Permutation(num_documents_, seed), {}};
  epoch.begins.reserve(num_documents_ + 1);
  uint64_t begin = 0;
  for (uint64_t i = 0; i < num_documents_; ++i) {
    epoch.begins.push_back(begin);
    begin += document_tokens(epoch.order(i));
  }
  epoch.begins.push_back(begin);
  BRIGADE_ASSERT(begin == num_tokens_);
  return std::make_shared<const Epoch>(std::move(epoch));
}

DocumentEpochSource::EpochPointer DocumentEpochSource::epoch_of(
    uint64_t sample) const {
  const uint64_t number = sampler_.epoch(sample);
  const std::lock_guard lock(mutex_);
  if (!current_ || current_->number != number)
    current_ = make_epoch(number);
  return current_;
}

void DocumentEpochSource::read_pieces(
    const Epoch& epoch,
    uint64_t position,
    std::span<int64_t> out,
    Read read) const {
  auto next =
      std::upper_bound(epoch.begins.begin(), epoch.begins.end(), position);
  while (!out.empty()) {
    const auto place = static_cast<uint64_t>(next - epoch.begins.begin()) - 1;
    const uint64_t numel = std::min(out.size(), *next - position);
    const uint64_t document = epoch.order(place);
    (*dataset_.*read)(
        dataset_->documents().begin(document) + position - epoch.begins[place],
        out.first(numel));
    out = out.subspan(numel);
    position += numel;
    ++next;
  }
}

void DocumentEpochSource::read(uint64_t sample, Window& window) const {
  const EpochPointer epoch = epoch_of(sample);
  const uint64_t begin = first_token(sample);
  const auto seq_length = static_cast<uint64_t>(seq_length_);
  window.inputs.resize(seq_length);
  window.targets.resize(seq_length);
  read_pieces(*epoch, begin, window.inputs, &TokenDataset::read);
  read_pieces(*epoch, begin + 1, window.targets, &TokenDataset::read_targets);

  std::vector<int64_t>& starts = window.document_starts;
  starts.clear();
  const uint64_t end = begin + seq_length;
  for (auto next =
           std::upper_bound(epoch->begins.begin(), epoch->begins.end(), begin);
       next != epoch->begins.end() && *next < end;
       ++next) {
    const auto position = static_cast<int64_t>(*next - begin);
    if (starts.empty() || starts.back() != position)
      starts.push_back(position);
  }
}

}  // namespace brigade

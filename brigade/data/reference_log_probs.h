// What a reference model thinks of the pairs of a dataset: the log-probability
// of each document's counting tokens, in PREFIX.reference.json beside it.
//
//   {"format": "brigade-reference", "version": 1, "model": "models/base",
//    "num_tokens": 5120, "log_probs": [-31.25, -40.5, ...]}
//
// One number per document, so that a chosen answer's comes before that of the
// rejected one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "brigade/data/token_dataset.h"

namespace brigade {

struct ReferenceLogProbs {
  std::string model;              // a name for people
  std::vector<double> log_probs;  // nats, of each document
};

// PREFIX.reference.json of a dataset's path, which may name its file of tokens.
std::filesystem::path reference_path(const std::filesystem::path& dataset);

// Throws ConfigError where there is no such file, saying how to make it, and
// DataError for one that is damaged, or has another number of tokens or
// documents than the dataset; nothing else is compared.
ReferenceLogProbs read_reference(const TokenDataset& dataset);

// Throws StorageError.
void write_reference(
    const TokenDataset& dataset,
    const ReferenceLogProbs& reference);

}  // namespace brigade

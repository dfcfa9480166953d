#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "brigade/base/error.h"
#include "brigade/base/readable.h"
#include "brigade/data/batch_sampler.h"
#include "brigade/data/dataset_info.h"
#include "brigade/data/reference_log_probs.h"
#include "brigade/data/token_dataset.h"
#include "brigade/tokenizer/tokenizer.h"
#include "cli/inspect.h"

namespace brigade::cli {
namespace {

namespace fs = std::filesystem;

// This many tokens are read to find the largest id, in a few seconds.
constexpr uint64_t kMaxScannedTokens = uint64_t{1} << 28;
constexpr uint64_t kMaxMeasuredDocuments = uint64_t{1} << 24;
constexpr uint64_t kShownTokens = 64;
constexpr size_t kShownBytes = 160;

// Beyond the tokenizer's vocabulary an id decodes to nothing.
std::string beyond(int64_t largest, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr || largest < tokenizer->vocab_size())
    return "";
  return fmt::format(
      "; the tokenizer has ids to {} alone: it is not the dataset's",
      tokenizer->vocab_size() - 1);
}

std::string id_range(const TokenDataset& dataset, const Tokenizer* tokenizer) {
  const uint64_t count = std::min(dataset.num_tokens(), kMaxScannedTokens);
  std::vector<int64_t> block;
  int64_t least = std::numeric_limits<int64_t>::max();
  int64_t largest = -1;
  for (uint64_t begin = 0; begin < count; begin += block.size()) {
    block.resize(std::min<uint64_t>(1 << 20, count - begin));
    dataset.read(begin, block);
    const auto [low, high] = std::minmax_element(block.begin(), block.end());
    least = std::min(least, *low);
    largest = std::max(largest, *high);
  }
  return fmt::format(
      "ids {} to {}{}{}",
      least,
      largest,
      beyond(largest, tokenizer),
      count < dataset.num_tokens()
          ? fmt::format(" in the first {}", grouped(count))
          : "");
}

std::string document_lengths(const DocumentIndex& documents) {
  const uint64_t count = std::min(documents.size(), kMaxMeasuredDocuments);
  std::vector<uint64_t> lengths(count);
  for (uint64_t d = 0; d < count; ++d)
    lengths[d] = documents.begin(d + 1) - documents.begin(d);
  std::sort(lengths.begin(), lengths.end());
  return fmt::format(
      "shortest {}, median {}, longest {} tokens{}",
      grouped(lengths.front()),
      grouped(lengths[count / 2]),
      grouped(lengths.back()),
      count < documents.size()
          ? fmt::format(", of the first {}", grouped(count))
          : "");
}

std::unique_ptr<Tokenizer> find_tokenizer(
    const InspectArguments& arguments,
    const std::optional<DatasetInfo>& info) {
  if (!arguments.tokenizer.empty())
    return load_tokenizer(arguments.tokenizer);
  if (info && (info->tokenizer == "bytes" || fs::exists(info->tokenizer)))
    return load_tokenizer(info->tokenizer);
  return nullptr;
}

std::vector<int32_t>
read_ids(const TokenDataset& dataset, uint64_t begin, uint64_t count) {
  std::vector<int64_t> tokens(count);
  dataset.read(begin, tokens);
  return {tokens.begin(), tokens.end()};
}

// Without a character that the cut between tokens left incomplete.
std::string whole_characters(std::string text) {
  while (text.ends_with("\uFFFD"))
    text.resize(text.size() - 3);
  return text;
}

void show_document(
    const TokenDataset& dataset,
    uint64_t document,
    const Tokenizer* tokenizer) {
  const DocumentIndex& documents = dataset.documents();
  if (document >= documents.size()) {
    throw ConfigError(fmt::format(
        "--document {}: '{}' has {} document(s), counted from 0",
        document,
        dataset.path().string(),
        documents.size()));
  }
  // Piece by piece: a document may be larger than memory.
  constexpr uint64_t kPiece = 1 << 16;
  const uint64_t end = documents.begin(document + 1);
  for (uint64_t begin = documents.begin(document); begin < end;
       begin += kPiece) {
    const auto ids = read_ids(dataset, begin, std::min(kPiece, end - begin));
    if (tokenizer != nullptr)
      fmt::print("{}", tokenizer->decode(ids));
    else
      fmt::print("{}\n", fmt::join(ids, " "));
  }
  fmt::print("\n");
}

void add_pairs(const TokenDataset& dataset, uint64_t pairs, Rows& rows) {
  rows.emplace_back(
      "pairs",
      fmt::format("{} of a chosen and a rejected answer", grouped(pairs)));
  if (!fs::exists(reference_path(dataset.path())))
    return;
  std::string model;
  try {
    model = read_reference(dataset).model;
  } catch (const DataError& error) {
    model = fmt::format("cannot be used: {}", error.what());
  }
  rows.emplace_back("reference", model);
}

}  // namespace

void inspect_dataset(const InspectArguments& arguments) {
  const TokenDataset dataset = TokenDataset::open(arguments.path);
  const bool is_megatron = std::string_view(dataset.format()) == "Megatron";
  const auto info = is_megatron
                        ? read_dataset_info(dataset_prefix(dataset.path()))
                        : std::nullopt;
  const auto tokenizer = find_tokenizer(arguments, info);
  if (arguments.document)
    return show_document(dataset, *arguments.document, tokenizer.get());

  const uint64_t num_tokens = dataset.num_tokens();
  const DocumentIndex& documents = dataset.documents();
  Rows rows = {
      {"dataset",
       fmt::format(
           "{} ({}, {})",
           dataset.path().string(),
           dataset.format(),
           readable_bytes(static_cast<double>(fs::file_size(dataset.path()))))},
      {"tokens",
       fmt::format(
           "{} ({}{})",
           grouped(num_tokens),
           to_string(dataset.token_type()),
           num_tokens == 0 ? "" : ", " + id_range(dataset, tokenizer.get()))},
      {"documents",
       fmt::format(
           "{}{}",
           grouped(documents.size()),
           documents.size() == 0 ? "" : ": " + document_lengths(documents))}};
  if (info && info->num_pairs > 0)
    add_pairs(dataset, info->num_pairs, rows);
  std::string windows;
  for (const int64_t seq_length : {128, 1024, 4096}) {
    windows += fmt::format(
        "{}{} of {}",
        windows.empty() ? "" : ", ",
        grouped(count_windows(num_tokens, seq_length)),
        seq_length);
  }
  rows.emplace_back("windows", windows + " (training.seq_length)");
  if (info) {
    rows.emplace_back(
        "vocabulary",
        fmt::format(
            "{}{}",
            grouped(static_cast<uint64_t>(info->vocab_size)),
            info->eos_id
                ? fmt::format("; token {} ends each document", *info->eos_id)
                : ""));
    for (const DatasetSource& source : info->sources) {
      rows.emplace_back(
          rows.back().first == "source" || rows.back().first.empty() ? ""
                                                                     : "source",
          fmt::format(
              "{}: {} of text, {} document(s)",
              source.path,
              readable_bytes(static_cast<double>(source.text_bytes)),
              grouped(source.documents)));
      if (rows.size() > 24) {
        rows.emplace_back("", "...");
        break;
      }
    }
  }
  if (tokenizer)
    rows.emplace_back("tokenizer", tokenizer->description());
  if (num_tokens > 0) {
    const auto ids = read_ids(dataset, 0, std::min(num_tokens, kShownTokens));
    rows.emplace_back(
        "beginning",
        tokenizer
            ? quoted(whole_characters(tokenizer->decode(ids)), kShownBytes)
            : fmt::format("{}", fmt::join(ids, " ")));
  }
  print_rows(rows);
}

}  // namespace brigade::cli

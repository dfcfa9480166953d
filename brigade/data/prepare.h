// Text files to a dataset: tokenized on all cores, written as Megatron's .bin
// and .idx, with what training and generation need to know beside them:
//   PREFIX.bin, PREFIX.idx   the tokens
//   PREFIX.mask              of conversations: which tokens count in the loss
//   PREFIX.json              vocabulary, counts, sources (DatasetInfo)
//   PREFIX.tokenizer/        a copy of the tokenizer's files
// An old PREFIX.reference.json (data/reference_log_probs.h) is removed.
// The names appear when everything is complete, PREFIX.idx last; a run that
// was interrupted leaves nothing that opens, and the next one starts over (with
// --overwrite, where some names had appeared). What it reads, and a PREFIX.json
// or PREFIX.tokenizer that is not of prepare(), it never replaces.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "brigade/data/dataset_info.h"
#include "brigade/data/prepare_chat.h"
#include "brigade/data/text_files.h"
#include "brigade/data/text_reader.h"

namespace brigade {

struct PrepareProgress {
  // The first two for --train-tokenizer alone. What SentencePiece does in
  // kLearnTokens has no progress that it tells.
  enum class Stage { kReadForTokenizer, kLearnTokens, kTokenize };
  Stage stage = Stage::kTokenize;
  uint64_t bytes_read = 0;   // on disk, in this stage
  uint64_t total_bytes = 0;  // on disk; 0 if it is not known
  uint64_t num_tokens = 0;
  uint64_t num_documents = 0;
};

struct PrepareOptions {
  std::vector<std::filesystem::path> inputs;  // files, folders, "-": stdin
  std::filesystem::path out_prefix;
  // What load_tokenizer() takes; or, if empty, a SentencePiece model with
  // train_vocab_size tokens is trained on the text.
  std::string tokenizer;
  int64_t train_vocab_size = 0;

  enum class BeginOfDocument { kPrepend, kNone };
  // Absent: kPrepend with a tokenizer that is trained here, so that texts begin
  // in training as they do in generation, evaluation and an exported model;
  // else kNone, as Megatron does.
  std::optional<BeginOfDocument> begin_of_document;
  enum class EndOfDocument { kAppend, kNone };
  EndOfDocument end_of_document = EndOfDocument::kAppend;
  enum class Existing { kRefuse, kOverwrite };
  Existing existing = Existing::kRefuse;

  // The format of the files; absent: by their extension, or else by their
  // content.
  std::optional<TextFormat> format;
  TextOptions text;
  BadLines bad_lines = BadLines::kRefuse;
  int num_workers = 0;  // threads that tokenize; 0: one per core

  // The files hold conversations, one JSON object per line, and a mask is
  // written beside their tokens. begin_of_document and end_of_document are then
  // about texts, and prompts with completions, alone: in a conversation the
  // template writes all there is.
  std::optional<PrepareChatOptions> chat;

  // Called on the thread that called prepare(), several times per second, and
  // when a stage begins.
  std::function<void(const PrepareProgress&)> on_progress;
};

struct PrepareResult {
  DatasetInfo info;
  uint64_t text_bytes = 0;
  uint64_t empty_documents = 0;  // left out, as Megatron does
  uint64_t bad_lines = 0;        // left out with BadLines::kSkip
  // Where the first of them are and what is wrong with each.
  std::vector<std::string> first_bad_lines;
  SkippedFiles skipped;  // of the folders among the inputs
  std::optional<ChatCounts> chat;
  uint64_t counting_tokens = 0;  // of conversations: those with a loss
};

// Needs at most 500 MB whatever the size of the input. Throws ConfigError
// (options that do not go together, a dataset or another's file in the place of
// the output, a source among them), DataError (input:
// see for_each_piece(); no text at all), StorageError.
PrepareResult prepare(const PrepareOptions& options);

}  // namespace brigade

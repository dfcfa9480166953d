#include "brigade/data/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "brigade/base/error.h"
#include "brigade/base/units.h"
#include "brigade/chat/chat_template.h"
#include "brigade/chat/chat_tokens.h"
#include "brigade/data/loss_mask.h"
#include "brigade/data/megatron_writer.h"
#include "brigade/data/ordered_pipeline.h"
#include "brigade/data/prepare_encode.h"
#include "brigade/data/prepare_output.h"
#include "brigade/data/reference_log_probs.h"
#include "brigade/files/file.h"
#include "brigade/files/lock.h"
#include "brigade/files/read_once.h"
#include "brigade/tokenizer/sentencepiece_json.h"
#include "brigade/tokenizer/training.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// Text under way between reader and writer. Each byte of it costs several
// more: the parsed copy, its tokens, the tokenizer's own tables.
constexpr uint64_t kMaxPreparedText = 48 * MiB;
constexpr size_t kNamedBadLines = 10;

bool always_has_messages(const std::optional<ConversationForm>& form) {
  return form == ConversationForm::kMessages ||
         form == ConversationForm::kShareGpt ||
         form == ConversationForm::kAlpaca;
}

// Keeps a second run out of the same files.
FileLock lock_prefix(const fs::path& prefix) {
  auto lock =
      FileLock::try_lock(with_suffix(prefix, ".lock"), FileLock::File::kRemove);
  if (!lock)
    throw ConfigError(
        fmt::format("[prepare] another run is writing '{}'", prefix.string()));
  return std::move(*lock);
}

void remove_file(const fs::path& path) {
  change_storage(
      "remove", path, [&](std::error_code& error) { fs::remove(path, error); });
}

class Preparation {
 public:
  explicit Preparation(const PrepareOptions& options) : options_(options) {
    check_options();
    num_workers_ = options.num_workers > 0
                       ? options.num_workers
                       : static_cast<int>(
                             std::max(1U, std::thread::hardware_concurrency()));
    files_ = find_text_files(
        options.inputs,
        options.chat ? std::nullopt : options.format,
        &result_.skipped,
        options.chat ? JsonFiles::kListsTaken : JsonFiles::kSkipped);
    for (TextFile& file : files_) {
      progress_.total_bytes += file.size_bytes;
      if (options.chat)
        file.format = TextFormat::kJsonLines;
      if (!file.is_regular && options.train_vocab_size > 0) {
        throw ConfigError(fmt::format(
            "[prepare] --train-tokenizer reads the text twice, but '{}' can "
            "be read once: write it to a file first",
            input_name(file.path)));
      }
    }
    refuse_sources_in_output(options.out_prefix, sources());
  }

  PrepareResult run() {
    const fs::path& prefix = options_.out_prefix;
    if (!prefix.parent_path().empty()) {
      change_storage(
          "create", prefix.parent_path(), [&](std::error_code& error) {
            fs::create_directories(prefix.parent_path(), error);
          });
    }
    refuse_foreign_output(prefix);
    const FileLock lock = lock_prefix(prefix);
    if (options_.existing == PrepareOptions::Existing::kRefuse)
      refuse_existing_output(prefix);
    remove_leftovers(prefix);

    make_tokenizer();
    type_ = megatron_token_type(tokenizer_->vocab_size());
    MegatronWriter writer(prefix, {.type = type_});
    write_tokens(writer);

    finish_result(writer);
    // From here on names appear. The old index goes first and the new one
    // comes last, so that no moment shows a dataset of old and new parts.
    remove_file(with_suffix(prefix, ".idx"));
    // By PREFIX.json the other parts are known as Brigade's, so it comes first.
    write_dataset_info(prefix, result_.info);
    if (tokenizer_folder_)
      tokenizer_folder_->commit();
    // What a model said of the dataset that was here.
    remove_file(reference_path(prefix));
    const fs::path mask = with_suffix(prefix, ".mask");
    if (options_.chat)
      mask_.commit(mask);
    else
      remove_file(mask);
    writer.commit();
    return std::move(result_);
  }

 private:
  void check_options() const {
    std::vector<std::string> problems;
    if (options_.inputs.empty())
      problems.emplace_back(
          "--input: no file was given, nor conversations with --chat");
    if (std::count_if(
            options_.inputs.begin(), options_.inputs.end(), is_standard_input) >
        1)
      problems.emplace_back("--input: standard input can be read once");
    const fs::path name = options_.out_prefix.filename();
    if (name.empty() || name == "." || name == "..")
      problems.emplace_back(
          "--out: a path with a name, such as data/shakespeare");
    // The dataset could not be opened by such a name.
    const std::string extension = name.extension().string();
    if (extension == ".npy" || extension == ".ds" ||
        dataset_prefix(name) != name)
      problems.push_back(fmt::format(
          "--out '{}': {} is the extension of a file of tokens; give the "
          "PREFIX of PREFIX.bin and PREFIX.idx",
          options_.out_prefix.string(),
          extension));
    const bool trains = options_.train_vocab_size != 0;
    if (options_.tokenizer.empty() && !trains)
      problems.emplace_back(
          "no tokenizer was given: set --tokenizer to \"bytes\", a "
          "tokenizer.json, a SentencePiece .model or a folder with one, or "
          "train one with --train-tokenizer VOCAB_SIZE");
    if (options_.chat && trains)
      problems.emplace_back(
          "--train-tokenizer does not go with --chat: a chat template needs a "
          "tokenizer with special tokens");
    if (!options_.tokenizer.empty() && trains)
      problems.emplace_back(
          "--tokenizer and --train-tokenizer are both given; leave one out");
    if (!problems.empty())
      throw ConfigError(problems);
  }

  // What must be there when the output has come.
  std::vector<PrepareSource> sources() const {
    const char* option = options_.chat ? "--chat" : "--input";
    std::vector<PrepareSource> sources;
    for (const TextFile& file : files_)
      sources.push_back({option, file.path});
    if (options_.chat && !options_.chat->template_file.empty())
      sources.push_back({"--template", options_.chat->template_file});
    if (!options_.tokenizer.empty() && options_.tokenizer != "bytes")
      sources.push_back({"--tokenizer", tokenizer_file(options_.tokenizer)});
    return sources;
  }

  void make_tokenizer() {
    std::string spec = options_.tokenizer;
    if (spec != "bytes") {
      tokenizer_folder_ =
          std::make_unique<TokenizerFolder>(options_.out_prefix);
      // Loaded from the file that the user named, so that errors name it.
      if (!spec.empty()) {
        tokenizer_ = load_tokenizer(spec);
        tokenizer_folder_->copy(spec);
      } else {
        train();
        spec = tokenizer_folder_->temporary().string();
      }
    }
    if (!tokenizer_)
      tokenizer_ = load_tokenizer(spec);
    using BeginOfDocument = PrepareOptions::BeginOfDocument;
    const auto begin = options_.begin_of_document.value_or(
        options_.tokenizer.empty() ? BeginOfDocument::kPrepend
                                   : BeginOfDocument::kNone);
    if (begin == BeginOfDocument::kPrepend) {
      bos_id_ = tokenizer_->bos_id();
      if (!bos_id_) {
        throw ConfigError(fmt::format(
            "[prepare] the tokenizer '{}' has no token that begins a text: "
            "leave out --prepend-bos, or name one in its "
            "tokenizer_config.json",
            options_.tokenizer));
      }
    }
    if (options_.end_of_document == PrepareOptions::EndOfDocument::kAppend) {
      eos_id_ = tokenizer_->eos_id();
      if (!eos_id_ && !options_.chat) {
        throw ConfigError(fmt::format(
            "[prepare] the tokenizer '{}' has no end-of-document token: say "
            "--no-append-eos, or name one in its tokenizer_config.json",
            options_.tokenizer));
      }
    }
    if (options_.chat)
      make_chat_encoder(spec);
  }

  // `spec`: the tokenizer that is kept beside the dataset.
  void make_chat_encoder(const std::string& spec) {
    const PrepareChatOptions& chat = *options_.chat;
    if (!chat.template_file.empty()) {
      chat_template_ = ChatTemplate::load_file(chat.template_file, spec);
    } else if (!chat.template_name.empty() || always_has_messages(chat.form)) {
      chat_template_ =
          ChatTemplate::load(options_.tokenizer, chat.template_name);
    } else if (chat.form != ConversationForm::kText) {
      // Only lines of messages need one.
      chat_template_ = ChatTemplate::find(options_.tokenizer);
    }
    // What a run of this data is talked to with.
    const bool is_named =
        !chat.template_file.empty() || !chat.template_name.empty();
    if (chat_template_ && is_named && tokenizer_folder_)
      tokenizer_folder_->set_chat_template(chat_template_->source());
    encoder_ = std::make_unique<ChatEncoder>(
        *tokenizer_,
        chat_template_ ? &*chat_template_ : nullptr,
        ChatTokensOptions{
            .loss = chat.loss,
            .begin_id = bos_id_,
            .end_id = eos_id_,
            .chat = {
                .tools = {}, .variables = chat.variables, .now = chat.now}});
  }

  EncodedChats encode(const TextBlock& block) const {
    const TextFile& file = files_[block.file];
    if (encoder_)
      return encode_chat_block(
          *encoder_, block, file, *options_.chat, options_.bad_lines, type_);
    return {
        encode_block(
            *tokenizer_, block, file, options_.text, options_.bad_lines, type_),
        {}};
  }

  void train() {
    TokenizerTrainingOptions training{
        .vocab_size = options_.train_vocab_size, .num_threads = num_workers_};
    training.on_text_read = [this] {
      begin_stage(PrepareProgress::Stage::kLearnTokens);
    };
    begin_stage(PrepareProgress::Stage::kReadForTokenizer);
    TextReader reader(files_, options_.text);
    // Where there is more text than the trainer takes, it reads every n-th
    // block, from all over.
    const uint64_t stride =
        1 + progress_.total_bytes / static_cast<uint64_t>(training.max_bytes);
    std::function<void(const DataError&)> skip;
    if (options_.bad_lines == BadLines::kSkip)
      skip = [](const DataError&) {};  // named when they are tokenized
    uint64_t block_number = 0;
    const fs::path model = tokenizer_folder_->temporary() / "tokenizer.model";
    train_sentencepiece(
        [&](std::string& text) {
          TextBlock block;
          do {
            if (!reader.next(block))
              return false;
          } while (block_number++ % stride != 0);
          text.clear();
          for_each_piece(
              block,
              files_[block.file],
              options_.text,
              [&](const TextPiece& piece) {
                text += piece.text;
                text += '\n';
              },
              skip);
          report(block.bytes_read);
          return true;
        },
        model,
        training);
    // The faster engine reads it, and programs that read nothing else.
    if (const auto json = convert_sentencepiece(model))
      write_text_file(tokenizer_folder_->temporary() / "tokenizer.json", *json);
    begin_stage(PrepareProgress::Stage::kTokenize);
  }

  void write_tokens(MegatronWriter& writer) {
    for (const TextFile& file : files_)
      result_.info.sources.push_back({.path = file.path.string()});
    TextOptions text = options_.text;
    text.cut_before = [this](std::string_view whole, size_t at) {
      return tokenizer_->cut_before(whole, at);
    };
    if (options_.chat)
      text.json_key = "";  // all columns of tables
    TextReader reader(files_, text);
    if (bos_id_ && !options_.chat)
      append_tokens(type_, std::span(&*bos_id_, 1), ends_.begin);
    if (eos_id_ && !options_.chat)
      append_tokens(type_, std::span(&*eos_id_, 1), ends_.end);
    OrderedStages<TextBlock, EncodedChats> stages;
    stages.num_workers = num_workers_;
    stages.max_cost = kMaxPreparedText;
    stages.produce = [&](TextBlock& block) { return reader.next(block); };
    stages.cost = [](const TextBlock& block) { return block.text.size() + 1; };
    stages.transform = [&](const TextBlock& block) { return encode(block); };
    stages.consume = [&](const EncodedChats& encoded) {
      write_block(writer, encoded.block);
      chat_counts_.add(encoded.counts);
      progress_.num_tokens = writer.num_tokens();
      progress_.num_documents = writer.num_documents();
      report(encoded.block.bytes_read);
    };
    run_ordered(std::move(stages));
    if (writer.num_documents() == 0 && options_.chat) {
      throw DataError(fmt::format(
          "[prepare] no conversation is left: {} are too long, in {} no token "
          "counts, {} lines are none{}",
          chat_counts_.too_long,
          chat_counts_.without_targets,
          result_.bad_lines,
          chat_counts_.equal_pairs == 0
              ? ""
              : fmt::format(
                    ", in {} pairs both answers are equal",
                    chat_counts_.equal_pairs)));
    }
    require_one_kind();
    if (writer.num_documents() == 0) {
      throw DataError(fmt::format(
          "[prepare] there is no text in {}",
          files_.size() == 1
              ? fmt::format("'{}'", input_name(files_[0].path))
              : fmt::format("the {} input files", files_.size())));
    }
  }

  // Pairs and other conversations train by different losses.
  void require_one_kind() const {
    const uint64_t pairs = chat_counts_.pairs();
    const uint64_t all = std::accumulate(
        chat_counts_.forms.begin(), chat_counts_.forms.end(), uint64_t{0});
    if (pairs > 0 && pairs < all)
      throw DataError(fmt::format(
          "[prepare] {} lines are pairs of a chosen and a rejected answer, and "
          "{} are other conversations, which train by another loss: prepare "
          "them as two datasets",
          pairs,
          all - pairs));
  }

  void write_block(MegatronWriter& writer, const EncodedBlock& block) {
    DatasetSource& source = result_.info.sources[block.file];
    source.text_bytes += block.text_bytes;
    result_.text_bytes += block.text_bytes;
    result_.bad_lines += block.bad_lines.size();
    for (const std::string& line : block.bad_lines) {
      if (result_.first_bad_lines.size() < kNamedBadLines)
        result_.first_bad_lines.push_back(line);
    }
    const AppendedDocuments appended =
        append_documents(block, type_, ends_, writer);
    for (const uint8_t counts : block.counts)
      mask_.append(counts != 0);
    source.documents += appended.documents;
    result_.empty_documents += appended.empty_documents;
  }

  void finish_result(const MegatronWriter& writer) {
    if (options_.chat)
      result_.chat = chat_counts_;
    result_.counting_tokens = mask_.counting_tokens();
    result_.info = {
        .vocab_size = tokenizer_->vocab_size(),
        .tokenizer =
            tokenizer_folder_ ? tokenizer_folder_->path().string() : "bytes",
        .eos_id = options_.chat ? std::nullopt : eos_id_,
        .num_tokens = writer.num_tokens(),
        .num_documents = writer.num_documents(),
        .num_pairs = chat_counts_.pairs() > 0 ? writer.num_documents() / 2 : 0,
        .token_type = to_string(type_),
        .sources = std::move(result_.info.sources)};
  }

  void begin_stage(PrepareProgress::Stage stage) {
    progress_.stage = stage;
    last_report_ = {};
    report(0);
  }

  void report(uint64_t bytes_read) {
    const auto now = std::chrono::steady_clock::now();
    if (!options_.on_progress ||
        now - last_report_ < std::chrono::milliseconds(100))
      return;
    last_report_ = now;
    progress_.bytes_read = bytes_read;
    options_.on_progress(progress_);
  }

  const PrepareOptions& options_;
  int num_workers_ = 1;
  std::vector<TextFile> files_;
  std::unique_ptr<TokenizerFolder> tokenizer_folder_;  // null for "bytes"
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
  TokenType type_ = TokenType::kU16;
  DocumentEnds ends_;
  // Where the input is conversations:
  std::optional<ChatTemplate> chat_template_;
  std::unique_ptr<ChatEncoder> encoder_;
  LossMaskWriter mask_;
  ChatCounts chat_counts_;
  PrepareResult result_;
  PrepareProgress progress_;
  std::chrono::steady_clock::time_point last_report_{};
};

}  // namespace

PrepareResult prepare(const PrepareOptions& options) {
  return Preparation(options).run();
}

}  // namespace brigade

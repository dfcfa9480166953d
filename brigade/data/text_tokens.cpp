#include "brigade/data/text_tokens.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/base/units.h"
#include "brigade/data/megatron_writer.h"
#include "brigade/data/ordered_pipeline.h"
#include "brigade/data/prepare_encode.h"
#include "brigade/data/text_cache.h"
#include "brigade/data/text_reader.h"
#include "brigade/files/descriptor.h"
#include "brigade/files/digest.h"
#include "brigade/files/file.h"
#include "brigade/json/parse.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxTextUnderWay = 16 * MiB;
// Another process does not say when it has more.
constexpr std::chrono::milliseconds kLookEvery{20};
constexpr const char* kWhole = "tokens.ds";
constexpr const char* kGrowing = "growing";
constexpr const char* kGrowingEnds = "growing.index";

// Threads that tokenize leave the processor to those that train.
void give_way() {
  ::setpriority(PRIO_PROCESS, 0, 19);  // of this thread alone, on Linux
}

// A file that others read while it grows.
class GrowingFile {
 public:
  explicit GrowingFile(fs::path path) : path_(std::move(path)) {
    // Readers of one that was left keep it.
    ::unlink(path_.c_str());
    descriptor_ = Descriptor(::open(
        path_.c_str(),
        O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC,
        0644));
    if (!descriptor_.is_open())
      fail("create", errno);
  }

  void append(std::span<const std::byte> bytes) {
    if (!descriptor_.write(bytes))
      fail("write", errno);
  }
  // Its content is whole, and on the disk.
  void rename_to(const fs::path& path) {
    if (::fsync(descriptor_.get()) != 0)
      fail("write", errno);
    if (::rename(path_.c_str(), path.c_str()) != 0)
      fail("rename", errno);
  }

 private:
  [[noreturn]] void fail(const char* what, int error) const {
    throw StorageError(fmt::format(
        "[text_tokens] cannot {} '{}', which keeps the tokens of dataset.text: "
        "{}",
        what,
        path_.string(),
        std::strerror(error)));
  }

  fs::path path_;
  Descriptor descriptor_;
};

// What append_documents() writes to.
class GrowingTokens {
 public:
  GrowingTokens(const fs::path& folder, TokenType type)
      : folder_(folder),
        type_(type),
        ends_(folder / kGrowingEnds),
        tokens_(folder / kGrowing) {}

  void append(std::span<const std::byte> tokens) {
    new_tokens_.insert(new_tokens_.end(), tokens.begin(), tokens.end());
    open_tokens_ += tokens.size() / token_bytes(type_);
  }
  void end_document() {
    num_tokens_ += std::exchange(open_tokens_, 0);
    new_ends_.push_back(num_tokens_);
    ++num_documents_;
  }
  uint64_t open_tokens() const { return open_tokens_; }
  uint64_t num_documents() const { return num_documents_; }

  // Ends first: of every token that is there it is known which document holds
  // it.
  void publish() {
    ends_.append(std::as_bytes(std::span(new_ends_)));
    tokens_.append(new_tokens_);
    new_ends_.clear();
    new_tokens_.clear();
  }
  void commit() {
    const fs::path whole = folder_ / kWhole;
    ends_.rename_to(with_suffix(whole, ".index"));
    write_text_file(
        with_suffix(whole, ".metadata"),
        fmt::format("brigade|{}\n{}\n", token_bytes(type_), num_tokens_));
    tokens_.rename_to(whole);
    sync_directory(folder_);
  }

 private:
  fs::path folder_;
  TokenType type_;
  GrowingFile ends_;
  GrowingFile tokens_;
  std::vector<uint64_t> new_ends_;
  std::vector<std::byte> new_tokens_;
  uint64_t num_tokens_ = 0;   // of documents that have ended
  uint64_t open_tokens_ = 0;  // of the one that has not
  uint64_t num_documents_ = 0;
};

// Identifies the version of a file without reading it.
nlohmann::json identity_of(const TextFile& file) {
  struct stat status {};
  if (::stat(file.path.c_str(), &status) != 0)
    return nullptr;
  return {
      fs::absolute(file.path).string(),
      status.st_size,
      status.st_ino,
      status.st_mtim.tv_sec,
      status.st_mtim.tv_nsec,
      file.is_table,
      file.format == TextFormat::kPlain};
}

nlohmann::json identity_of_tokenizer(const std::string& spec) {
  if (spec == "bytes")
    return spec;
  const fs::path file = tokenizer_file(spec);
  nlohmann::json identity = {sha256_of_file(file)};
  for (const char* name :
       {"tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json"}) {
    const fs::path beside = file.parent_path() / name;
    if (fs::exists(beside))
      identity.push_back(sha256_of_file(beside));
  }
  return identity;
}

std::string key_of(
    const std::vector<TextFile>& files,
    const TextInput& source) {
  // Grows where a tokenizer makes other tokens of the same files than before.
  constexpr int kVersion = 2;
  nlohmann::json identity = {
      kVersion,
      identity_of_tokenizer(source.tokenizer),
      source.key,
      source.prepend_bos};
  for (const TextFile& file : files)
    identity.push_back(identity_of(file));
  // Paths need not be UTF-8.
  return sha256_of_text(json_to_text(identity)).substr(0, 32);
}

}  // namespace

TextTokens::TextTokens(
    const TextInput& source,
    const TextTokensOptions& options)
    : source_(source),
      options_(options),
      files_(find_text_files(source.paths)),
      tokenizer_(load_tokenizer(source.tokenizer)) {
  for (const TextFile& file : files_) {
    total_bytes_ += file.size_bytes;
    if (!file.is_regular)
      throw DataError(fmt::format(
          "[text_tokens] '{}' is no regular file: dataset.text is read more "
          "than once; give a file, or `brigade prepare` the pipe",
          file.path.string()));
  }
  const auto eos = tokenizer_->eos_id();
  if (!eos)
    throw ConfigError(fmt::format(
        "[config] /dataset/tokenizer = \"{}\" has no end-of-document token: "
        "name one in its tokenizer_config.json",
        source.tokenizer));
  eos_id_ = *eos;
  if (source.prepend_bos) {
    bos_id_ = tokenizer_->bos_id();
    if (!bos_id_)
      throw ConfigError(fmt::format(
          "[config] /dataset/prepend_bos: the tokenizer '{}' has no token that "
          "begins a text",
          source.tokenizer));
  }
  type_ = megatron_token_type(tokenizer_->vocab_size());
  folder_ = options.folder / key_of(files_, source);
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error)
    throw StorageError(fmt::format(
        "[text_tokens] cannot create '{}', which keeps the tokens of "
        "dataset.text: {}",
        folder_.string(),
        error.message()));
  mark_used(folder_);
}

TextTokens::~TextTokens() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  if (thread_.joinable())
    thread_.join();
}

bool TextTokens::is_stopping() {
  const std::lock_guard lock(mutex_);
  return is_stopping_;
}

// Whether the snapshot holds so many tokens, or all.
bool TextTokens::look(uint64_t num_tokens) {
  const auto is_enough = [&] {
    return snapshot_.is_whole ||
           (snapshot_.dataset && snapshot_.dataset->num_tokens() >= num_tokens);
  };
  if (is_enough())
    return true;
  const TokenDatasetOptions options{.vocab_size = options_.vocab_size};
  const fs::path whole = folder_ / kWhole;
  if (fs::exists(whole)) {
    snapshot_ = {
        std::make_shared<const TokenDataset>(
            TokenDataset::open(whole, options)),
        true};
    return true;
  }
  const fs::path growing = folder_ / kGrowing;
  std::error_code unknown;
  const uint64_t size_bytes = fs::file_size(growing, unknown);
  if (unknown || size_bytes / token_bytes(type_) < num_tokens)
    return false;
  try {
    snapshot_.dataset =
        std::make_shared<const TokenDataset>(TokenDataset::open_growing(
            growing, folder_ / kGrowingEnds, type_, options));
  } catch (const DataError&) {
    // They were completed, or begun again, in between.
    if (fs::exists(growing) && fs::exists(folder_ / kGrowingEnds))
      throw;
  }
  return is_enough();
}

void TextTokens::begin_if_nobody_does() {
  if (thread_.joinable())
    return;
  auto lock = FileLock::try_lock(folder_ / "lock", FileLock::File::kRemove);
  if (!lock || fs::exists(folder_ / kWhole))
    return;
  lock_.emplace(std::move(*lock));
  thread_ = std::thread([this] { run(); });
}

void TextTokens::report(std::unique_lock<std::mutex>& lock) {
  const TextTokensProgress progress{bytes_read_, total_bytes_};
  if (!options_.on_progress || !lock_)
    return;
  lock.unlock();
  options_.on_progress(progress);
  lock.lock();
}

TextTokens::Snapshot TextTokens::wait_for(uint64_t num_tokens) {
  std::unique_lock lock(mutex_);
  while (!look(num_tokens)) {
    if (exception_)
      std::rethrow_exception(exception_);
    begin_if_nobody_does();
    if (num_tokens == UINT64_MAX)
      report(lock);
    changed_.wait_for(lock, kLookEvery);
  }
  return snapshot_;
}

void TextTokens::run() {
  std::exception_ptr exception;
  try {
    tokenize();
  } catch (...) {
    exception = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    exception_ = exception;
    lock_.reset();
  }
  changed_.notify_all();
}

void TextTokens::tokenize() {
  give_way();
  GrowingTokens tokens(folder_, type_);
  const TextOptions text{
      .json_key = source_.key,
      .python = source_.python,
      .cut_before = [this](std::string_view whole, size_t at) {
        return tokenizer_->cut_before(whole, at);
      }};
  TextReader reader(files_, text);
  DocumentEnds ends;
  if (bos_id_)
    append_tokens(type_, std::span(&*bos_id_, 1), ends.begin);
  append_tokens(type_, std::span(&eos_id_, 1), ends.end);
  OrderedStages<TextBlock, EncodedBlock> stages;
  stages.num_workers =
      options_.num_workers > 0
          ? options_.num_workers
          : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  stages.max_cost = kMaxTextUnderWay;
  stages.produce = [&](TextBlock& block) {
    return !is_stopping() && reader.next(block);
  };
  stages.cost = [](const TextBlock& block) { return block.text.size() + 1; };
  stages.transform = [&](const TextBlock& block) {
    give_way();
    return encode_block(
        *tokenizer_, block, files_[block.file], text, BadLines::kRefuse, type_);
  };
  stages.consume = [&](const EncodedBlock& encoded) {
    append_documents(encoded, type_, ends, tokens);
    tokens.publish();
    {
      const std::lock_guard lock(mutex_);
      bytes_read_ = encoded.bytes_read;
    }
    changed_.notify_all();
  };
  run_ordered(std::move(stages));
  if (is_stopping())
    return;
  if (tokens.num_documents() == 0)
    throw DataError(fmt::format(
        "[text_tokens] there is no text in '{}'{}",
        files_[0].path.string(),
        files_.size() == 1
            ? ""
            : fmt::format(" and {} more files", files_.size() - 1)));
  tokens.commit();
  remove_unused(options_.folder);
}

}  // namespace brigade

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/files/file.h"
#include "brigade/tokenizer/kinds.h"
#include "brigade/tokenizer/sentencepiece_reason.h"

namespace brigade {
namespace {

[[noreturn]] void fail(
    const std::filesystem::path& path,
    const std::string& what) {
  throw DataError(fmt::format(
      "[tokenizer] {}: not a usable SentencePiece model: {}",
      path.string(),
      what));
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::filesystem::path path, const TokensBeside& beside)
      : path_(std::move(path)) {
    const MappedFile file(path_);
    if (file.size_bytes() == 0)
      fail(path_, "the file is empty");
    const auto status = processor_->LoadFromSerializedProto(file.text());
    if (!status.ok()) {
      const std::string words = words_of_sentencepiece(status.ToString());
      fail(
          path_,
          words.empty() ? "its bytes are those of something else" : words);
    }
    if (processor_->GetPieceSize() <= 0)
      fail(path_, "it holds no pieces");
    bos_ = token_id(beside.names.bos.value_or(""));
    eos_ = token_id(beside.names.eos.value_or(""));
    adds_bos_ = beside.adds_bos;
    adds_eos_ = beside.adds_eos;
  }

  // Control symbols such as <s> are never recognised in the text:
  // SentencePiece's own rule.
  std::vector<int32_t> encode(
      std::string_view text,
      const EncodeOptions& options) const override {
    require_utf8(text);
    std::vector<int32_t> ids;
    const auto status = processor_->Encode(text, &ids);
    if (!status.ok()) {
      throw DataError(fmt::format(
          "[tokenizer] {}: cannot encode a text of {} bytes: {}",
          path_.string(),
          text.size(),
          words_of_sentencepiece(status.ToString())));
    }
    if (options.special_tokens == SpecialTokens::kTemplate) {
      if (adds_bos_ && bos_)
        ids.insert(ids.begin(), *bos_);
      if (adds_eos_ && eos_)
        ids.push_back(*eos_);
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options)
      const override {
    std::string text;
    std::vector<int32_t> run;
    Place place = Place::kBegin;
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size())
        continue;
      if (!processor_->IsControl(id)) {
        run.push_back(id);
      } else if (!options.skip_special_tokens) {
        text += decode_run(run, place);
        text += processor_->IdToPiece(id);
        place = run.empty() ? place : Place::kMiddle;
        run.clear();
      }
    }
    text += decode_run(run, place);
    return to_valid_utf8(std::move(text));
  }

  int64_t vocab_size() const override { return processor_->GetPieceSize(); }
  std::optional<int32_t> bos_id() const override { return bos_; }
  std::optional<int32_t> eos_id() const override { return eos_; }
  std::optional<std::string> token_text(int32_t id) const override {
    if (id < 0 || id >= vocab_size())
      return std::nullopt;
    return processor_->IdToPiece(id);
  }
  std::optional<int32_t> token_id(std::string_view text) const override {
    const int id = processor_->PieceToId(text);
    // It returns the unknown token for every piece that it does not know.
    if (id < 0 || id >= vocab_size() || processor_->IdToPiece(id) != text)
      return std::nullopt;
    return id;
  }
  std::string description() const override {
    return fmt::format(
        "SentencePiece model {}: {} tokens", path_.string(), vocab_size());
  }

 private:
  enum class Place { kBegin, kMiddle };

  std::string decode_run(std::vector<int32_t> run, Place place) const {
    if (run.empty())
      return {};
    std::string head;
    if (place == Place::kMiddle) {
      // SentencePiece drops the space of the first token it is given; only the
      // text's own first one is to go, so the run gets a neighbour in front.
      head = decode_run({run.front()}, Place::kBegin);
      run.insert(run.begin(), run.front());
    }
    std::string text;
    const auto status = processor_->Decode(run, &text);
    if (!status.ok()) {
      throw DataError(fmt::format(
          "[tokenizer] {}: cannot decode {} tokens: {}",
          path_.string(),
          run.size(),
          status.ToString()));
    }
    return text.substr(std::min(head.size(), text.size()));
  }

  std::filesystem::path path_;
  std::optional<int32_t> bos_;
  std::optional<int32_t> eos_;
  bool adds_bos_ = true;
  bool adds_eos_ = false;
  // By pointer, so that its functions are called as virtual ones:
  // sentencepiece_library.cpp has no others.
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_ =
      std::make_unique<sentencepiece::SentencePieceProcessor>();
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(
    std::filesystem::path path,
    const TokensBeside& beside) {
  return std::make_unique<SentencePieceTokenizer>(std::move(path), beside);
}

}  // namespace brigade

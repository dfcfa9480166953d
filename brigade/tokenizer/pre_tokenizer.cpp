#include "brigade/tokenizer/pre_tokenizer.h"

#include <optional>
#include <vector>

#include "brigade/tokenizer/byte_alphabet.h"
#include "brigade/tokenizer/json_parts.h"
#include "brigade/tokenizer/pattern.h"
#include "brigade/tokenizer/pre_tokenizer_split.h"
#include "brigade/tokenizer/unicode.h"
#include "brigade/tokenizer/utf8.h"

namespace brigade {
namespace {

// Splits at single characters for which `predicate` holds.
template <typename Predicate>
void split_characters(
    const Piece& piece,
    SplitBehavior behavior,
    PieceSink& sink,
    Predicate&& predicate) {
  PieceSplitter splitter(piece, behavior, sink);
  for (size_t at = 0; at < piece.text.size();) {
    const size_t length = utf8_length(piece.text[at]);
    if (predicate(utf8_code_point(piece.text, at)))
      splitter.delimiter(at, at + length);
    at += length;
  }
  splitter.finish();
}

class SplitPreTokenizer : public PreTokenizer {
 public:
  explicit SplitPreTokenizer(const JsonNode& node)
      : pattern_(node.at("pattern")),
        behavior_(split_behavior(node.at("behavior"))),
        invert_(
            node.at("invert").boolean() ? PieceSplitter::Invert::kYes
                                        : PieceSplitter::Invert::kNo) {}

  void split(const Piece& piece, RegexScratch& scratch, PieceSink& sink)
      const override {
    PieceSplitter splitter(piece, behavior_, sink);
    splitter.set_invert(invert_);
    pattern_.for_each(piece.text, scratch, [&](size_t begin, size_t end) {
      splitter.delimiter(begin, end);
    });
    splitter.finish();
  }

 private:
  const Pattern pattern_;
  const SplitBehavior behavior_;
  const PieceSplitter::Invert invert_;
};

// `\w+|[^\w\s]+`: the matches are the pieces.
class WhitespacePreTokenizer : public PreTokenizer {
 public:
  explicit WhitespacePreTokenizer(const JsonNode& node)
      : regex_(Regex::words(node)) {}
  void split(const Piece& piece, RegexScratch& scratch, PieceSink& sink)
      const override {
    PieceSplitter splitter(piece, SplitBehavior::kRemoved, sink);
    splitter.set_invert(PieceSplitter::Invert::kYes);
    for_each_match(regex_, piece.text, scratch, [&](size_t begin, size_t end) {
      splitter.delimiter(begin, end);
    });
    splitter.finish();
  }

 private:
  const Regex regex_;
};

class CharacterPreTokenizer : public PreTokenizer {
 public:
  using Predicate = bool (*)(char32_t);
  CharacterPreTokenizer(Predicate predicate, SplitBehavior behavior)
      : predicate_(predicate), behavior_(behavior) {}
  void split(const Piece& piece, RegexScratch&, PieceSink& sink)
      const override {
    split_characters(piece, behavior_, sink, predicate_);
  }

 private:
  const Predicate predicate_;
  const SplitBehavior behavior_;
};

class DelimiterPreTokenizer : public PreTokenizer {
 public:
  explicit DelimiterPreTokenizer(const JsonNode& node)
      : delimiter_(character(node.at("delimiter"))) {}
  void split(const Piece& piece, RegexScratch&, PieceSink& sink)
      const override {
    split_characters(piece, SplitBehavior::kRemoved, sink, [&](char32_t c) {
      return c == delimiter_;
    });
  }

 private:
  const char32_t delimiter_;
};

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(const JsonNode& node)
      : split_(node.boolean_at("split", true)) {
    append_utf8(replacement_, character(node.at("replacement")));
    const auto scheme = node.find("prepend_scheme");
    const std::string name = scheme ? scheme->string() : "always";
    if (name == "always")
      scheme_ = Scheme::kAlways;
    else if (name == "first")
      scheme_ = Scheme::kFirst;
    else if (name == "never")
      scheme_ = Scheme::kNever;
    else
      scheme->fail(fmt::format(
          "unknown scheme \"{}\"; there are always, first and never", name));
    // The older key says the same and must not contradict.
    if (!node.boolean_at("add_prefix_space", true)) {
      if (scheme && scheme_ != Scheme::kNever)
        scheme->fail("contradicts \"add_prefix_space\": false");
      scheme_ = Scheme::kNever;
    }
  }

  void split(const Piece& piece, RegexScratch&, PieceSink& sink)
      const override {
    std::string text;
    text.reserve(piece.text.size() + piece.text.size() / 2);
    for (const char c : piece.text) {
      if (c == ' ')
        text += replacement_;
      else
        text += c;
    }
    const bool prepends = scheme_ == Scheme::kAlways ||
                          (scheme_ == Scheme::kFirst && piece.at_start);
    if (prepends && !text.starts_with(replacement_))
      text.insert(0, replacement_);
    const Piece whole{.text = text, .at_start = piece.at_start};
    if (!split_) {
      sink.accept(whole);
      return;
    }
    PieceSplitter splitter(whole, SplitBehavior::kMergedWithNext, sink);
    for (size_t at = text.find(replacement_); at != std::string::npos;
         at = text.find(replacement_, at + replacement_.size()))
      splitter.delimiter(at, at + replacement_.size());
    splitter.finish();
  }

 private:
  enum class Scheme { kAlways, kFirst, kNever };
  std::string replacement_;
  Scheme scheme_ = Scheme::kAlways;
  const bool split_;
};

// GPT-2's pattern, encoder.py of openai/gpt-2.
constexpr const char* kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
    "\\s+(?!\\S)|\\s+";

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  explicit ByteLevelPreTokenizer(const JsonNode& node)
      : add_prefix_space_(node.at("add_prefix_space").boolean()) {
    node.at("trim_offsets").boolean();  // about offsets, which do not matter
    if (node.boolean_at("use_regex", true))
      regex_.emplace(kGpt2Pattern, node);
  }

  void split(const Piece& piece, RegexScratch& scratch, PieceSink& sink)
      const override {
    if (!add_prefix_space_ || piece.text.starts_with(' ')) {
      cut(piece, scratch, sink);
      return;
    }
    std::string text = " ";
    text += piece.text;
    cut({.text = text, .at_start = piece.at_start}, scratch, sink);
  }

 private:
  const bool add_prefix_space_;
  std::optional<Regex> regex_;

  void cut(const Piece& piece, RegexScratch& scratch, PieceSink& sink) const {
    const auto emit = [&](size_t begin, size_t end) {
      if (begin == end)
        return;
      sink.accept(
          {.text = piece.text.substr(begin, end - begin),
           .byte_level = true,
           .at_start = piece.at_start && begin == 0});
    };
    if (!regex_) {
      emit(0, piece.text.size());
      return;
    }
    size_t covered = 0;
    for_each_match(*regex_, piece.text, scratch, [&](size_t begin, size_t end) {
      emit(covered, begin);
      emit(begin, end);
      covered = end;
    });
    emit(covered, piece.text.size());
  }
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(
      std::vector<std::unique_ptr<PreTokenizer>> parts)
      : parts_(std::move(parts)) {}

  void split(const Piece& piece, RegexScratch& scratch, PieceSink& sink)
      const override {
    run(0, piece, scratch, sink);
  }

 private:
  const std::vector<std::unique_ptr<PreTokenizer>> parts_;

  struct NextPart : PieceSink {
    NextPart(
        const PreTokenizerSequence& owner,
        size_t part,
        RegexScratch& regex_scratch,
        PieceSink& last)
        : sequence(owner), index(part), scratch(regex_scratch), sink(last) {}
    void accept(const Piece& piece) override {
      if (piece.byte_level) {
        // A stage that follows ByteLevel sees its characters.
        const std::string text = ByteAlphabet::encode(piece.text);
        sequence.run(
            index, {.text = text, .at_start = piece.at_start}, scratch, sink);
      } else {
        sequence.run(index, piece, scratch, sink);
      }
    }
    const PreTokenizerSequence& sequence;
    const size_t index;
    RegexScratch& scratch;
    PieceSink& sink;
  };

  void run(
      size_t index,
      const Piece& piece,
      RegexScratch& scratch,
      PieceSink& sink) const {
    if (index == parts_.size()) {
      sink.accept(piece);
    } else if (index + 1 == parts_.size()) {
      parts_[index]->split(piece, scratch, sink);
    } else {
      NextPart next(*this, index + 1, scratch, sink);
      parts_[index]->split(piece, scratch, next);
    }
  }
};

std::unique_ptr<PreTokenizer> make_pre_tokenizer(
    const JsonNode& node,
    int depth) {
  require_depth(node, depth);
  const std::string& type = type_of(node);
  const auto characters = [](bool (*predicate)(char32_t), SplitBehavior how) {
    return std::make_unique<CharacterPreTokenizer>(predicate, how);
  };
  if (type == "Sequence") {
    const JsonNode list = node.at("pretokenizers");
    std::vector<std::unique_ptr<PreTokenizer>> parts;
    for (size_t i = 0; i < list.size(); ++i)
      parts.push_back(make_pre_tokenizer(list.element(i), depth + 1));
    return std::make_unique<PreTokenizerSequence>(std::move(parts));
  }
  if (type == "ByteLevel")
    return std::make_unique<ByteLevelPreTokenizer>(node);
  if (type == "Split")
    return std::make_unique<SplitPreTokenizer>(node);
  if (type == "Metaspace")
    return std::make_unique<MetaspacePreTokenizer>(node);
  if (type == "Digits")
    return characters(
        is_numeric,
        node.at("individual_digits").boolean() ? SplitBehavior::kIsolated
                                               : SplitBehavior::kContiguous);
  if (type == "Punctuation") {
    const auto behavior = node.find("behavior");
    return characters(
        is_punctuation,
        behavior ? split_behavior(*behavior) : SplitBehavior::kIsolated);
  }
  if (type == "Whitespace")
    return std::make_unique<WhitespacePreTokenizer>(node);
  if (type == "WhitespaceSplit")
    return characters(is_white_space, SplitBehavior::kRemoved);
  if (type == "BertPreTokenizer") {
    std::vector<std::unique_ptr<PreTokenizer>> parts;
    parts.push_back(characters(is_white_space, SplitBehavior::kRemoved));
    parts.push_back(characters(is_punctuation, SplitBehavior::kIsolated));
    return std::make_unique<PreTokenizerSequence>(std::move(parts));
  }
  if (type == "CharDelimiterSplit" || type == "Delimiter")
    return std::make_unique<DelimiterPreTokenizer>(node);
  refuse(node, fmt::format("the pre-tokenizer \"{}\"", type));
}

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonNode& node) {
  return make_pre_tokenizer(node, 0);
}

}  // namespace brigade

#include "brigade/tokenizer/pre_tokenizer.h"

#include <fmt/format.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "brigade/base/utf8.h"
#include "brigade/tokenizer/byte_alphabet.h"
#include "brigade/tokenizer/json_parts.h"
#include "brigade/tokenizer/pattern.h"
#include "brigade/tokenizer/pre_tokenizer_split.h"
#include "brigade/tokenizer/unicode.h"

namespace brigade {
namespace {

using Invert = PieceSplitter::Invert;

// Splits at single characters for which `predicate` holds.
template <typename Predicate>
PreTokenizer at_characters(Predicate predicate, SplitBehavior behavior) {
  return [=](const Piece& piece, RegexScratch&, const PieceSink& sink) {
    PieceSplitter splitter(piece, behavior, sink);
    for (size_t at = 0; at < piece.text.size();) {
      const size_t length = utf8_length(piece.text[at]);
      if (predicate(utf8_code_point(piece.text, at)))
        splitter.delimiter(at, at + length);
      at += length;
    }
    splitter.finish();
  };
}

PreTokenizer make_split(const JsonNode& node) {
  auto pattern = std::make_shared<const Pattern>(node.at("pattern"));
  const SplitBehavior behavior = split_behavior(node.at("behavior"));
  const Invert invert =
      node.at("invert").boolean() ? Invert::kYes : Invert::kNo;
  return [=](const Piece& piece, RegexScratch& scratch, const PieceSink& sink) {
    PieceSplitter splitter(piece, behavior, sink, invert);
    pattern->for_each(piece.text, scratch, [&](size_t begin, size_t end) {
      splitter.delimiter(begin, end);
    });
    splitter.finish();
  };
}

// `\w+|[^\w\s]+`: the matches are the pieces.
PreTokenizer make_white_space(const JsonNode& node) {
  auto regex = std::make_shared<const Regex>(Regex::words(node));
  return [=](const Piece& piece, RegexScratch& scratch, const PieceSink& sink) {
    PieceSplitter splitter(piece, SplitBehavior::kRemoved, sink, Invert::kYes);
    for_each_match(*regex, piece.text, scratch, [&](size_t begin, size_t end) {
      splitter.delimiter(begin, end);
    });
    splitter.finish();
  };
}

enum class Prepend { kAlways, kFirst, kNever };

Prepend read_prepend(const JsonNode& node) {
  Prepend prepend = Prepend::kAlways;
  const auto scheme = node.find("prepend_scheme");
  const std::string name = scheme ? scheme->string() : "always";
  if (name == "first")
    prepend = Prepend::kFirst;
  else if (name == "never")
    prepend = Prepend::kNever;
  else if (name != "always")
    scheme->fail(fmt::format(
        "unknown scheme \"{}\"; there are always, first and never", name));
  // The older key says the same and must not contradict.
  if (!node.boolean_at("add_prefix_space", true)) {
    if (scheme && prepend != Prepend::kNever)
      scheme->fail("contradicts \"add_prefix_space\": false");
    prepend = Prepend::kNever;
  }
  return prepend;
}

PreTokenizer make_metaspace(const JsonNode& node) {
  const bool splits = node.boolean_at("split", true);
  const std::string space = character(node.at("replacement"));
  const Prepend prepend = read_prepend(node);
  return [=](const Piece& piece, RegexScratch&, const PieceSink& sink) {
    std::string text;
    text.reserve(piece.text.size() + piece.text.size() / 2);
    for (const char c : piece.text) {
      if (c == ' ')
        text += space;
      else
        text += c;
    }
    const bool prepends = prepend == Prepend::kAlways ||
                          (prepend == Prepend::kFirst && piece.at_start);
    if (prepends && !text.starts_with(space))
      text.insert(0, space);
    const Piece whole{.text = text, .at_start = piece.at_start};
    if (!splits)
      return sink(whole);
    PieceSplitter splitter(whole, SplitBehavior::kMergedWithNext, sink);
    for (size_t at = text.find(space); at != std::string::npos;
         at = text.find(space, at + space.size()))
      splitter.delimiter(at, at + space.size());
    splitter.finish();
  };
}

// GPT-2's pattern, encoder.py of openai/gpt-2.
constexpr const char* kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
    "\\s+(?!\\S)|\\s+";

// `regex`: null where the piece is not split.
void split_byte_level(
    const Piece& piece,
    const Regex* regex,
    RegexScratch& scratch,
    const PieceSink& sink) {
  const auto emit = [&](size_t begin, size_t end) {
    if (begin == end)
      return;
    sink(
        {.text = piece.text.substr(begin, end - begin),
         .byte_level = true,
         .at_start = piece.at_start && begin == 0});
  };
  size_t covered = 0;
  if (regex != nullptr)
    for_each_match(*regex, piece.text, scratch, [&](size_t begin, size_t end) {
      emit(covered, begin);
      emit(begin, end);
      covered = end;
    });
  emit(covered, piece.text.size());
}

PreTokenizer make_byte_level(const JsonNode& node) {
  const bool adds_space = node.at("add_prefix_space").boolean();
  node.at("trim_offsets").boolean();  // about offsets, which do not matter
  std::shared_ptr<const Regex> regex;
  if (node.boolean_at("use_regex", true))
    regex = std::make_shared<const Regex>(kGpt2Pattern, node);
  return [=](const Piece& piece, RegexScratch& scratch, const PieceSink& sink) {
    if (!adds_space || piece.text.starts_with(' '))
      return split_byte_level(piece, regex.get(), scratch, sink);
    std::string text = " ";
    text += piece.text;
    split_byte_level(
        {.text = text, .at_start = piece.at_start}, regex.get(), scratch, sink);
  };
}

void run_parts(
    std::span<const PreTokenizer> parts,
    const Piece& piece,
    RegexScratch& scratch,
    const PieceSink& sink) {
  if (parts.empty())
    return sink(piece);
  if (parts.size() == 1)
    return parts[0](piece, scratch, sink);
  const auto next = [&](const Piece& part) {
    if (!part.byte_level)
      return run_parts(parts.subspan(1), part, scratch, sink);
    // A stage that follows ByteLevel sees its characters.
    const std::string text = ByteAlphabet::encode(part.text);
    run_parts(
        parts.subspan(1),
        {.text = text, .at_start = part.at_start},
        scratch,
        sink);
  };
  parts[0](piece, scratch, std::ref(next));
}

PreTokenizer in_sequence(std::vector<PreTokenizer> parts) {
  return [parts = std::move(parts)](
             const Piece& piece, RegexScratch& scratch, const PieceSink& sink) {
    run_parts(parts, piece, scratch, sink);
  };
}

}  // namespace

PreTokenizer make_pre_tokenizer(const JsonNode& node, int depth) {
  require_depth(node, depth);
  const std::string& type = type_of(node);
  if (type == "Sequence") {
    std::vector<PreTokenizer> parts;
    for (const JsonNode& part : node.at("pretokenizers").elements())
      parts.push_back(make_pre_tokenizer(part, depth + 1));
    return in_sequence(std::move(parts));
  }
  if (type == "ByteLevel")
    return make_byte_level(node);
  if (type == "Split")
    return make_split(node);
  if (type == "Metaspace")
    return make_metaspace(node);
  if (type == "Digits")
    return at_characters(
        is_numeric,
        node.at("individual_digits").boolean() ? SplitBehavior::kIsolated
                                               : SplitBehavior::kContiguous);
  if (type == "Punctuation") {
    const auto behavior = node.find("behavior");
    return at_characters(
        is_punctuation,
        behavior ? split_behavior(*behavior) : SplitBehavior::kIsolated);
  }
  if (type == "Whitespace")
    return make_white_space(node);
  if (type == "WhitespaceSplit")
    return at_characters(is_white_space, SplitBehavior::kRemoved);
  if (type == "BertPreTokenizer") {
    return in_sequence(
        {at_characters(is_white_space, SplitBehavior::kRemoved),
         at_characters(is_punctuation, SplitBehavior::kIsolated)});
  }
  if (type == "CharDelimiterSplit" || type == "Delimiter")
    return at_characters(
        [delimiter = utf8_code_point(character(node.at("delimiter")), 0)](
            char32_t c) { return c == delimiter; },
        SplitBehavior::kRemoved);
  refuse(node, fmt::format("the pre-tokenizer \"{}\"", type));
}

}  // namespace brigade

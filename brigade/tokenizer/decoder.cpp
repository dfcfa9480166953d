#include "brigade/tokenizer/decoder.h"

#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/tokenizer/byte_alphabet.h"
#include "brigade/tokenizer/json_parts.h"
#include "brigade/tokenizer/pattern.h"

namespace brigade {
namespace {

using Tokens = std::vector<std::string>;

// A token with a character outside the alphabet (an added one) is itself.
void append_bytes(std::string& bytes, const std::string& token) {
  const size_t size_before = bytes.size();
  for (size_t at = 0; at < token.size(); at += utf8_length(token[at])) {
    const auto byte = ByteAlphabet::byte(utf8_code_point(token, at));
    if (!byte) {
      bytes.resize(size_before);
      bytes += token;
      return;
    }
    bytes.push_back(static_cast<char>(*byte));
  }
}

void decode_byte_level(Tokens& tokens, RegexScratch&) {
  std::string bytes;
  for (const std::string& token : tokens)
    append_bytes(bytes, token);
  tokens.assign(1, to_valid_utf8(std::move(bytes)));
}

// The byte that a token like <0x0A> stands for. Rust's integer parser, which
// reads the two characters, takes a plus sign.
std::optional<uint8_t> fallback_byte(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>')
    return std::nullopt;
  uint8_t byte = 0;
  const char* const end = &token[5];
  const auto [parsed, error] =
      std::from_chars(&token[token[3] == '+' ? 4 : 3], end, byte, 16);
  return error == std::errc() && parsed == end ? std::optional(byte)
                                               : std::nullopt;
}

// A run of byte tokens is its characters if it is valid as a whole, and one
// U+FFFD per byte otherwise.
void decode_byte_fallback(Tokens& tokens, RegexScratch&) {
  Tokens out;
  out.reserve(tokens.size());
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty())
      return;
    const size_t count = bytes.size();
    if (valid_utf8_prefix(bytes) == count)
      out.push_back(std::exchange(bytes, {}));
    else
      out.insert(out.end(), count, std::string(kReplacementCharacter));
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = fallback_byte(token)) {
      bytes.push_back(static_cast<char>(*byte));
    } else {
      flush();
      out.push_back(std::move(token));
    }
  }
  flush();
  tokens = std::move(out);
}

void fuse(Tokens& tokens, RegexScratch&) {
  std::string text;
  for (const std::string& token : tokens)
    text += token;
  tokens.assign(1, text);
}

Decoder strip_decoder(const JsonNode& node) {
  const int64_t start = node.at("start").integer(0, INT32_MAX);
  const int64_t stop = node.at("stop").integer(0, INT32_MAX);
  const std::string content = character(node.at("content"));
  return [=](Tokens& tokens, RegexScratch&) {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (int64_t i = 0; i < start && rest.starts_with(content); ++i)
        rest.remove_prefix(content.size());
      for (int64_t i = 0; i < stop && rest.ends_with(content); ++i)
        rest.remove_suffix(content.size());
      token = std::string(rest);
    }
  };
}

Decoder replace_decoder(const JsonNode& node) {
  auto pattern = std::make_shared<const Pattern>(node.at("pattern"));
  return [pattern, content = node.at("content").string()](
             Tokens& tokens, RegexScratch& scratch) {
    for (std::string& token : tokens)
      token = pattern->replace(
          token, content, max_grown_bytes(token.size()), scratch);
  };
}

void replace_all(
    std::string& text,
    std::string_view old_part,
    std::string_view new_part) {
  size_t at = text.find(old_part);
  if (at == std::string::npos)
    return;
  std::string out;
  size_t copied = 0;
  for (; at != std::string::npos; at = text.find(old_part, copied)) {
    out.append(text, copied, at - copied).append(new_part);
    copied = at + old_part.size();
  }
  text = out.append(text, copied);
}

Decoder metaspace_decoder(const JsonNode& node) {
  const bool drops_first = node.boolean_at("add_prefix_space", true) &&
                           (!node.find("prepend_scheme") ||
                            node.at("prepend_scheme").string() != "never");
  const std::string replacement = character(node.at("replacement"));
  return [=](Tokens& tokens, RegexScratch&) {
    for (size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], replacement, i == 0 && drops_first ? "" : " ");
  };
}

// The engine's list, in its order.
void clean_up(std::string& token) {
  static constexpr std::pair<std::string_view, std::string_view> kParts[] = {
      {" .", "."},
      {" ?", "?"},
      {" !", "!"},
      {" ,", ","},
      {" ' ", "'"},
      {" n't", "n't"},
      {" 'm", "'m"},
      {" do not", " don't"},
      {" 's", "'s"},
      {" 've", "'ve"},
      {" 're", "'re"}};
  for (const auto& [old_part, new_part] : kParts)
    replace_all(token, old_part, new_part);
}

// "##" in front of a token that continues a word.
Decoder word_piece_decoder(const JsonNode& node) {
  const std::string prefix = node.at("prefix").string();
  const bool cleans_up = node.at("cleanup").boolean();
  return [=](Tokens& tokens, RegexScratch&) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i].starts_with(prefix))
        tokens[i].erase(0, prefix.size());
      else if (i > 0)
        tokens[i].insert(0, " ");
      if (cleans_up)
        clean_up(tokens[i]);
    }
  };
}

// "</w>" at the end of a word.
Decoder suffix_decoder(const JsonNode& node) {
  const std::string suffix = node.at("suffix").string();
  if (suffix.empty())
    node.at("suffix").fail("the suffix is empty");
  return [=](Tokens& tokens, RegexScratch&) {
    for (size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], suffix, i + 1 == tokens.size() ? "" : " ");
  };
}

size_t total_bytes(const Tokens& tokens) {
  size_t total = 0;
  for (const std::string& token : tokens)
    total += token.size();
  return total;
}

Decoder sequence_decoder(const JsonNode& node, std::vector<Decoder> parts) {
  const std::string where =
      fmt::format("{}: at {}", node.file(), node.pointer());
  return [=](Tokens& tokens, RegexScratch& scratch) {
    const size_t max_bytes = max_grown_bytes(total_bytes(tokens));
    for (const Decoder& part : parts) {
      part(tokens, scratch);
      if (total_bytes(tokens) > max_bytes)
        throw DataError(fmt::format(
            "[tokenizer] {}: decoding makes the text longer than {} bytes",
            where,
            max_bytes));
    }
  };
}

}  // namespace

Decoder make_decoder(const JsonNode& node, int depth) {
  require_depth(node, depth);
  const std::string& type = type_of(node);
  if (type == "Sequence") {
    std::vector<Decoder> parts;
    for (const JsonNode& part : node.at("decoders").elements())
      parts.push_back(make_decoder(part, depth + 1));
    return sequence_decoder(node, std::move(parts));
  }
  if (type == "ByteLevel")
    return decode_byte_level;
  if (type == "ByteFallback")
    return decode_byte_fallback;
  if (type == "Fuse")
    return fuse;
  if (type == "Strip")
    return strip_decoder(node);
  if (type == "Replace")
    return replace_decoder(node);
  if (type == "Metaspace")
    return metaspace_decoder(node);
  if (type == "WordPiece")
    return word_piece_decoder(node);
  if (type == "BPEDecoder")
    return suffix_decoder(node);
  refuse(node, fmt::format("the decoder \"{}\"", type));
}

}  // namespace brigade

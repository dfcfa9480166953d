#include "brigade/tokenizer/decoder.h"

#include <optional>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/tokenizer/byte_alphabet.h"
#include "brigade/tokenizer/json_parts.h"
#include "brigade/tokenizer/pattern.h"
#include "brigade/tokenizer/utf8.h"
#include "brigade/tokenizer/word_decoders.h"

namespace brigade {
namespace {

class ByteLevelDecoder : public Decoder {
 public:
  void decode(std::vector<std::string>& tokens, RegexScratch&) const override {
    std::string bytes;
    for (const std::string& token : tokens)
      append(bytes, token);
    tokens.assign(1, to_valid_utf8(std::move(bytes)));
  }

 private:
  // A token with a character outside the alphabet (an added one) is itself.
  static void append(std::string& bytes, const std::string& token) {
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
};

// The byte that a token like <0x0A> stands for. Rust's integer parser, which
// reads the two characters, takes a plus sign.
std::optional<uint8_t> fallback_byte(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>')
    return std::nullopt;
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9')
      return c - '0';
    if (c >= 'A' && c <= 'F')
      return c - 'A' + 10;
    if (c >= 'a' && c <= 'f')
      return c - 'a' + 10;
    return -1;
  };
  const int high = token[3] == '+' ? 0 : digit(token[3]);
  const int low = digit(token[4]);
  if (high < 0 || low < 0)
    return std::nullopt;
  return static_cast<uint8_t>(high * 16 + low);
}

// A run of byte tokens is its characters if it is valid as a whole, and one
// U+FFFD per byte otherwise.
class ByteFallbackDecoder : public Decoder {
 public:
  void decode(std::vector<std::string>& tokens, RegexScratch&) const override {
    std::vector<std::string> out;
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
};

class FuseDecoder : public Decoder {
 public:
  void decode(std::vector<std::string>& tokens, RegexScratch&) const override {
    std::string text;
    for (const std::string& token : tokens)
      text += token;
    tokens.assign(1, std::move(text));
  }
};

class StripDecoder : public Decoder {
 public:
  explicit StripDecoder(const JsonNode& node)
      : start_(node.at("start").integer(0, INT32_MAX)),
        stop_(node.at("stop").integer(0, INT32_MAX)) {
    append_utf8(content_, character(node.at("content")));
  }

  void decode(std::vector<std::string>& tokens, RegexScratch&) const override {
    for (std::string& token : tokens) {
      size_t begin = 0;
      for (int64_t i = 0;
           i < start_ && token.compare(begin, content_.size(), content_) == 0;
           ++i)
        begin += content_.size();
      std::string_view rest = std::string_view(token).substr(begin);
      for (int64_t i = 0; i < stop_ && rest.ends_with(content_); ++i)
        rest.remove_suffix(content_.size());
      token = std::string(rest);
    }
  }

 private:
  std::string content_;
  const int64_t start_;
  const int64_t stop_;
};

class ReplaceDecoder : public Decoder {
 public:
  explicit ReplaceDecoder(const JsonNode& node)
      : pattern_(node.at("pattern")), content_(node.at("content").string()) {}
  void decode(std::vector<std::string>& tokens, RegexScratch& scratch)
      const override {
    for (std::string& token : tokens)
      token = pattern_.replace(
          token, content_, max_grown_bytes(token.size()), scratch);
  }

 private:
  const Pattern pattern_;
  const std::string content_;
};

class MetaspaceDecoder : public Decoder {
 public:
  explicit MetaspaceDecoder(const JsonNode& node)
      : drops_first_(
            node.boolean_at("add_prefix_space", true) &&
            (!node.find("prepend_scheme") ||
             node.at("prepend_scheme").string() != "never")) {
    append_utf8(replacement_, character(node.at("replacement")));
  }

  void decode(std::vector<std::string>& tokens, RegexScratch&) const override {
    for (size_t i = 0; i < tokens.size(); ++i)
      replace(tokens[i], i == 0 && drops_first_ ? "" : " ");
  }

 private:
  std::string replacement_;
  const bool drops_first_;

  void replace(std::string& token, std::string_view content) const {
    std::string out;
    size_t copied = 0;
    for (size_t at = token.find(replacement_); at != std::string::npos;
         at = token.find(replacement_, copied)) {
      out.append(token, copied, at - copied).append(content);
      copied = at + replacement_.size();
    }
    token = out.append(token, copied);
  }
};

class DecoderSequence : public Decoder {
 public:
  DecoderSequence(
      const JsonNode& node,
      std::vector<std::unique_ptr<Decoder>> parts)
      : where_(fmt::format("{}: at {}", node.file(), node.pointer())),
        parts_(std::move(parts)) {}

  void decode(std::vector<std::string>& tokens, RegexScratch& scratch)
      const override {
    const size_t max_bytes = max_grown_bytes(total_bytes(tokens));
    for (const auto& part : parts_) {
      part->decode(tokens, scratch);
      if (total_bytes(tokens) > max_bytes)
        throw DataError(fmt::format(
            "[tokenizer] {}: decoding makes the text longer than {} bytes",
            where_,
            max_bytes));
    }
  }

 private:
  const std::string where_;
  const std::vector<std::unique_ptr<Decoder>> parts_;

  static size_t total_bytes(const std::vector<std::string>& tokens) {
    size_t total = 0;
    for (const std::string& token : tokens)
      total += token.size();
    return total;
  }
};

std::unique_ptr<Decoder> make_decoder(const JsonNode& node, int depth) {
  require_depth(node, depth);
  const std::string& type = type_of(node);
  if (type == "Sequence") {
    const JsonNode list = node.at("decoders");
    std::vector<std::unique_ptr<Decoder>> parts;
    for (size_t i = 0; i < list.size(); ++i)
      parts.push_back(make_decoder(list.element(i), depth + 1));
    return std::make_unique<DecoderSequence>(node, std::move(parts));
  }
  if (type == "ByteLevel")
    return std::make_unique<ByteLevelDecoder>();
  if (type == "ByteFallback")
    return std::make_unique<ByteFallbackDecoder>();
  if (type == "Fuse")
    return std::make_unique<FuseDecoder>();
  if (type == "Strip")
    return std::make_unique<StripDecoder>(node);
  if (type == "Replace")
    return std::make_unique<ReplaceDecoder>(node);
  if (type == "Metaspace")
    return std::make_unique<MetaspaceDecoder>(node);
  if (type == "WordPiece")
    return make_word_piece_decoder(node);
  if (type == "BPEDecoder")
    return make_suffix_decoder(node);
  refuse(node, fmt::format("the decoder \"{}\"", type));
}

}  // namespace

std::unique_ptr<Decoder> make_decoder(const JsonNode& node) {
  return make_decoder(node, 0);
}

}  // namespace brigade

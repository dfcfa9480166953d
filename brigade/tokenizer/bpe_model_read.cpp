// Reading the "model" of a tokenizer.json; every complaint has its JSON path.

#include "brigade/tokenizer/bpe_model.h"

#include <fmt/format.h>
#include "brigade/base/utf8.h"
#include "brigade/tokenizer/json_parts.h"

namespace brigade {
namespace {

constexpr size_t kCodePointPages = 0x110000 >> 8;

std::string affix(const JsonNode& node, const char* key) {
  const auto value = node.find(key);
  return value ? value->string() : std::string();
}

}  // namespace

BpeModel::BpeModel(const JsonNode& node)
    : file_(node.file()),
      vocabulary_(node.at("vocab")),
      prefix_(affix(node, "continuing_subword_prefix")),
      suffix_(affix(node, "end_of_word_suffix")),
      merges_(node.at("merges").size()) {
  if (const auto dropout = node.find("dropout")) {
    if (!dropout->value().is_number() || dropout->value().get<double>() != 0)
      refuse(*dropout, "dropout");
  }
  fuse_unk_ = node.boolean_at("fuse_unk", false);
  byte_fallback_ = node.boolean_at("byte_fallback", false);
  ignore_merges_ = node.boolean_at("ignore_merges", false);
  if (const auto unk = node.find("unk_token"))
    unk_token_ = unk->string();
  read_merges(node.at("merges"));
  index_characters();
}

int32_t BpeModel::require_token(
    const JsonNode& merges,
    size_t index,
    std::string_view text) const {
  const auto id = vocabulary_.id(text);
  if (!id)
    merges.fail_at(
        std::to_string(index),
        fmt::format("the token \"{}\" is not in /model/vocab", text));
  return *id;
}

// Which space of "left right" stands between the tokens. Tokens may hold spaces
// themselves; then the line counts only if it can be read in one way.
size_t BpeModel::separator(std::string_view line) const {
  const size_t first = line.find(' ');
  if (first == line.rfind(' '))
    return first;
  size_t only = std::string_view::npos;
  std::string merged;
  for (size_t at = first; at != std::string_view::npos;
       at = line.find(' ', at + 1)) {
    const std::string_view left = line.substr(0, at);
    const std::string_view right = line.substr(at + 1);
    if (!right.starts_with(prefix_))
      continue;
    merged.assign(left).append(right.substr(prefix_.size()));
    if (!vocabulary_.id(left) || !vocabulary_.id(right) ||
        !vocabulary_.id(merged))
      continue;
    if (only != std::string_view::npos)
      return std::string_view::npos;
    only = at;
  }
  return only;
}

void BpeModel::read_merges(const JsonNode& node) {
  uint32_t rank = 0;
  std::string merged;
  for (size_t i = 0; i < node.size(); ++i) {
    const auto& entry = node.value()[i];
    std::string_view left;
    std::string_view right;
    if (entry.is_string()) {
      const std::string_view line = entry.get_ref<const std::string&>();
      if (line.starts_with("#version"))
        continue;
      const size_t space = separator(line);
      if (space == std::string_view::npos)
        node.fail_at(
            std::to_string(i),
            fmt::format(
                "expected two tokens and one space, found \"{}\"", line));
      left = line.substr(0, space);
      right = line.substr(space + 1);
    } else if (
        entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
        entry[1].is_string()) {
      left = entry[0].get_ref<const std::string&>();
      right = entry[1].get_ref<const std::string&>();
    } else {
      node.fail_at(
          std::to_string(i),
          "expected \"left right\" or [\"left\", \"right\"]");
    }
    if (left.empty() || right.empty())
      node.fail_at(std::to_string(i), "a token of the merge is empty");
    if (!right.starts_with(prefix_))
      node.fail_at(
          std::to_string(i),
          fmt::format(
              "the second token \"{}\" does not begin with the "
              "continuing_subword_prefix \"{}\"",
              right,
              prefix_));
    merged.assign(left).append(right.substr(prefix_.size()));
    const int32_t left_id = require_token(node, i, left);
    const int32_t right_id = require_token(node, i, right);
    const int32_t id = require_token(node, i, merged);
    merges_.set(left_id, right_id, {.rank = rank++, .id = id});
    boundaries_.add_merge(left, right);
  }
  merge_count_ = rank;
}

void BpeModel::index_characters() {
  page_of_.assign(kCodePointPages, 0);
  pages_.assign(1, {});
  for (const auto& [text, id] : vocabulary_.ids()) {
    if (text.empty() || utf8_length(text[0]) != text.size())
      continue;
    const char32_t c = utf8_code_point(text, 0);
    uint16_t& page = page_of_[c >> 8];
    if (page == 0) {
      page = static_cast<uint16_t>(pages_.size());
      pages_.emplace_back();
    }
    pages_[page][c & 0xFF] = {
        .id = id,
        .left_class = boundaries_.left_class(c),
        .right_class = boundaries_.right_class(c)};
  }
  all_bytes_ = byte_fallback_;
  for (size_t byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] =
        vocabulary_.id(fmt::format("<0x{:02X}>", byte)).value_or(-1);
    all_bytes_ = all_bytes_ && byte_ids_[byte] >= 0;
  }
  if (unk_token_)
    unk_id_ = vocabulary_.id(*unk_token_).value_or(-1);
  // Where all bytes have tokens, an unknown character is tokens that begin
  // with '<' and end with '>'.
  unknown_ = {
      .id = -1,
      .left_class = boundaries_.left_class('>'),
      .right_class = boundaries_.right_class('<')};
}

}  // namespace brigade
